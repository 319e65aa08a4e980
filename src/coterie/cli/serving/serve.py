"""`coterie serve`: decisions over HTTP."""

from typing import Annotated

import typer

from coterie.cli.shared.options import SettingsOption, split_settings


def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Where to listen; beyond loopback only with a key. [default: 127.0.0.1]"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="The port; 0 takes a free one, which the first line on stdout names. [default: 8080]"
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that share the port and the store. [default: 1]")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="A file for SQLite, or postgresql://… [default: coterie.db]")
    ] = None,
    settings: SettingsOption = None,
    durability: Annotated[
        str | None,
        typer.Option(
            help="What a power cut may cost: lose-nothing or lose-one-second. [default: lose-nothing]"
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Which policy decides. [default: hierarchical]")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Keep users' models over feature vectors on a GPU: cuda. [default: in this process]"
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="Add simulated users that rank and reward, with a separate store."),
    ] = False,
) -> None:
    """Serve decisions over HTTP: rank and reward.

    They are learned and durable before they are answered. COTERIE_* variables override a file of settings, and
    flags and settings given as name=value override both.
    """
    from coterie.service.serve import serve as run
    from coterie.service.settings import read_settings

    if demo and store is None:
        store = "coterie-demo.db"
    file, pairs = split_settings(settings or [])
    flags = {
        "host": host,
        "port": port,
        "workers": workers,
        "store": store,
        "durability": durability,
        "engine": engine,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    read = read_settings(file, policy=policy, **{**pairs, **given})
    run(read, demo=demo)
