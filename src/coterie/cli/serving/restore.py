"""`coterie restore`: makes a store from a backup."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.shared.extras import need_service
from coterie.cli.shared.options import JsonOption, ReplaceOption, StoreOption


def restore(
    path: Annotated[Path, typer.Argument(help="A file that `coterie backup` wrote.")],
    store: StoreOption = "coterie.db",
    replace: ReplaceOption = False,
    quick: Annotated[bool, typer.Option("--quick", help="Do not replay the whole log to check it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a backup, and make a store of it.

    Nothing is changed unless checksums, hash and replay agree. A backup of a file can go to PostgreSQL, and back.
    """
    need_service()
    import msgspec

    from coterie.service.log.backup import restore as put_back

    found = put_back(path, store, replace, not quick)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        typer.echo(
            f"{found.end - found.first} records from {found.first} to {found.end}, {found.users} users, no damage"
        )
