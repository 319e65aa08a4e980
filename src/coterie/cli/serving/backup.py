"""`coterie backup`: copies a service's store."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.shared.options import JsonOption, ReplaceOption, StoreOption
from coterie.cli.shared.tables import print_result


def backup(
    path: Annotated[Path, typer.Argument(help="The file to write.")],
    store: StoreOption = "coterie.db",
    replace: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a store into one file, also while a service writes.

    The copy is of one moment, is checked, and can be read by its owner alone.
    """
    from coterie.service.backup import back_up

    made = back_up(store, path, replace)
    records = f"{made.end - made.first} records from {made.first} to {made.end}"
    print_result(made, as_json, f"{records}, {made.users} users, in {path}")
