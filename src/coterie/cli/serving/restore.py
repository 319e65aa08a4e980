"""`coterie restore`: makes a store from a backup."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.shared.options import JsonOption, ReplaceOption, StoreOption
from coterie.cli.shared.tables import print_result


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
    from coterie.service.backup import restore as put_back

    found = put_back(path, store, replace, not quick)
    records = f"{found.end - found.first} records from {found.first} to {found.end}"
    print_result(found, as_json, f"{records}, {found.users} users, no damage")
