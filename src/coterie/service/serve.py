"""Running the service: checks the settings, listens, opens the store, and runs the application in uvicorn."""

import gc
import ipaddress
import os
import signal
import socket
import ssl
import sys
from functools import partial
from pathlib import Path

import uvicorn

from coterie.engines import open_engine
from coterie.errors import ParameterError
from coterie.service.app import create_app
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.http.connections import IDLE, Connections, Server, make_room_for
from coterie.service.http.guard import Guard
from coterie.service.http.keys import Keyring, keys_from_environment, keys_from_settings
from coterie.service.http.origins import for_pages, read_origins
from coterie.service.http.telemetry import spans_of
from coterie.service.listening import announce, listen, url_of
from coterie.service.log.store import Store, open_store
from coterie.service.logs import configure_logs
from coterie.service.settings import Settings
from coterie.service.store_errors import keep_trying
from coterie.service.waiting import opened
from coterie.service.workers import Workers


def serve(settings: Settings, demo: bool = False) -> None:
    """Serve until a signal, finish all accepted work, and exit with 1 if no snapshot was written.

    Port 0 is a free one; the first line on stdout says where the service listens.
    """
    configure_logs(settings.log_level)
    os.umask(0o077)  # only the owner may read what this process writes
    tls_of(settings)  # raises before anything is opened
    read_origins(settings.origins)  # raises before the store is opened
    sockets = listen(settings.host, settings.port)
    announce(url_of(sockets, settings.host, settings.tls_certificate is not None))
    if demo:
        print(
            "Open it in a browser: simulated users rank and reward, and the page shows what is learned.",
            flush=True,
        )
    if settings.workers == 1:
        serve_on(settings, sockets, demo)
    else:

        def work(number: int, again: bool) -> None:
            # They share the socket, so a connection that one would have taken is taken by another if it dies. While
            # nobody serves, one of them says that it starts; the others take connections when they are ready.
            serve_on(settings, sockets, demo and number == 0, number == 0 and not again)

        code = Workers(
            settings.workers, work, 2 * settings.stop_within + 10
        ).run()  # requests, then a snapshot
        if code:
            sys.exit(code)


def serve_on(
    settings: Settings, sockets: list[socket.socket], demo: bool = False, listen_first: bool = True
) -> None:
    """Serve on sockets that listen; with `listen_first`, requests are answered 503 during the start."""
    open_ = partial(open_store, settings.store, shared=True, durability=settings.durability)
    store = opened(open_, sockets if listen_first else [], tls_of(settings))
    app = make_app(settings, store, demo, listen_first)
    coordinator = app.metrics.coordinator
    coordinator.availability.give_up = lambda: signal.raise_signal(signal.SIGTERM)
    # The event loop's thread is busy with requests; the committer must not wait 5 ms for the interpreter.
    sys.setswitchinterval(0.0005)
    tune_garbage_collection()
    for number in (signal.SIGTERM, signal.SIGINT):
        # After its stop, uvicorn raises the signal again, which would otherwise end the process with an error.
        signal.signal(number, lambda *_: None)
    connections = Connections(settings, app.metrics)
    connections.most = make_room_for(settings.max_connections)
    config = uvicorn.Config(
        for_pages(app, settings.origins),
        http=connections.protocol(),
        log_level=settings.log_level,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(IDLE),
        timeout_graceful_shutdown=int(settings.stop_within),
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ws="none",
        lifespan="on",
    )
    Server(config, connections).run(sockets)
    if coordinator.failure is not None:
        raise coordinator.failure
    if not coordinator.saved:
        sys.exit(1)


def tune_garbage_collection() -> None:
    """Collect garbage rarely, and never look at objects from before: it took a third of a rank's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def make_app(settings: Settings, store: Store, demo: bool = False, listen_first: bool = False) -> Guard:
    """Return the application over an open store, after checking who may reach it; the rest is for `create_app`."""
    fixed = [*keys_from_settings(settings.keys), *keys_from_environment(os.environ)]
    keyring = Keyring(fixed, keep_trying(store.keys))
    check_host(settings, keyring)
    engine = None if settings.engine is None else open_engine(settings.engine)
    coordinator = Coordinator(settings, store, engine=engine)
    return create_app(coordinator, keyring, demo, spans_of(settings), listen_first)


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Return how connections are encrypted, None if they are not; raises if the TLS files cannot be used."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None:
        raise ParameterError(f"tls-key is {key!r}, but there is no tls-certificate; give both, or neither")
    files = certificate if key is None else f"{certificate} and {key}"
    try:
        for file in filter(None, (certificate, key)):
            Path(file).read_bytes()
        # A key with a password must not ask for it on a terminal.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, lambda: b"")
        return context
    except OSError as error:  # SSLError is one too
        hint = "" if key else "; tls-key is not given, and the certificate's file holds no key"
        raise ParameterError(
            f"the TLS files {files} cannot be used ({error}){hint}; expected a certificate and its key, in PEM, "
            "the key without a password"
        ) from error


def check_host(settings: Settings, keyring: Keyring) -> None:
    """Raise if other machines could reach a service without a key."""
    try:
        local = settings.host == "localhost" or ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        local = False
    if not local and not keyring:
        raise ParameterError(
            f"host is {settings.host!r}, which others can reach, and there is no key; make one with "
            "`coterie keys new NAME --scope decide`, or listen on 127.0.0.1"
        )
