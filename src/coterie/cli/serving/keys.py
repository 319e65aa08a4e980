"""`coterie keys`: the API keys of a service."""

import json
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from coterie.cli.shared.options import JsonOption, StoreOption

if TYPE_CHECKING:
    from coterie.service.log.store import Store

keys = typer.Typer(name="keys", no_args_is_help=True, help="Make, list and drop the keys of a service.")


@keys.command()
def new(
    name: Annotated[str, typer.Argument(help="What the key is called in lists and logs.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="decide, read or admin; may be given again.")
    ] = None,
    store: StoreOption = "coterie.db",
    toml: Annotated[
        bool, typer.Option("--toml", help="Do not keep it; print a line for the settings.")
    ] = False,
) -> None:
    """Make a key. It is printed once, and only its hash is kept. A running service takes it within seconds."""
    from coterie.service.http.keys import new_key

    key, row = new_key(name, scope or ["decide"])
    console = Console(stderr=True)
    if toml:
        console.print("Put this under \\[keys] in the settings:")
        line = f'"{row.name}:{"+".join(row.scopes)}" = "{row.hash.hex()}"'
        console.print(line, highlight=False, soft_wrap=True)
    else:
        with _opened(store) as opened:
            opened.save_key(row)
        console.print(f"The key {name} may {', '.join(row.scopes)}. It is shown only now:")
    print(key)


@keys.command(name="list")
def list_(store: StoreOption = "coterie.db", as_json: JsonOption = False) -> None:
    """List the keys by name and scope."""
    with _opened(store, create=False) as opened:
        rows = opened.keys()
    if as_json:
        print(json.dumps([{"name": row.name, "scopes": row.scopes} for row in rows], indent=2))
        return
    table = Table("name", "scopes", box=None)
    for row in rows:
        table.add_row(row.name, " ".join(row.scopes))
    Console().print(table if rows else "no keys")


@keys.command()
def drop(name: Annotated[str, typer.Argument(help="Which key.")], store: StoreOption = "coterie.db") -> None:
    """Drop a key. A running service refuses it within seconds."""
    with _opened(store, create=False) as opened:
        if not opened.drop_key(name):
            typer.echo(f"error: there is no key {name}", err=True)
            raise typer.Exit(2)


def _opened(store: str, create: bool = True) -> "closing[Store]":
    from coterie.service.log.store import open_store
    from coterie.service.store_errors import InUseError

    try:
        return closing(open_store(store, create=create))
    except InUseError:  # by the service, which rereads its keys regularly
        return closing(open_store(store, beside_owner=True, create=create))
