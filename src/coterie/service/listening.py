"""Where a service listens: sockets that are bound before anything else is opened."""

import socket
from collections.abc import Sequence

from coterie.errors import ParameterError

BACKLOG = 2048  # connections that wait to be accepted, as in uvicorn


def listen(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host; port 0 is a free port of its first address."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
        return [_bound(family, address) for family, address in (addresses if port else addresses[:1])]
    except OSError as error:
        way_out = "give another --host or --port, or --port 0 for a free one"
        reason = error.strerror or error
        raise ParameterError(f"cannot listen on {host}, port {port} ({reason}); {way_out}") from error


def _bound(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def url_of(listening: Sequence[socket.socket], host: str, tls: bool = False) -> str:
    """Return the URL of what listens, with the port that was bound."""
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if tls else ''}://{shown}:{listening[0].getsockname()[1]}"


def announce(url: str) -> None:
    """Say on stdout, in a line of its own, where the service listens: the first line that it prints there."""
    print(f"listening on {url}", flush=True)
