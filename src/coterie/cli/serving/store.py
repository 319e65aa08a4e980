"""`coterie store`: checks, exports, imports and repairs a service's store."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.shared.options import JsonOption, SettingsOption, StoreOption, split_settings
from coterie.cli.shared.tables import print_result
from coterie.errors import ParameterError

store = typer.Typer(name="store", no_args_is_help=True, help="Check, export and repair what a service keeps.")


@store.command()
def check(store: StoreOption = "coterie.db", as_json: JsonOption = False) -> None:
    """Replay from empty and from the snapshot, and compare.

    The two must be equal bit for bit; exit code 1 if they are not. The service may run meanwhile.
    """
    from coterie.service.log.store import open_to_read
    from coterie.service.snapshots.checking import check as check_store

    with closing(open_to_read(store)) as opened:
        found = check_store(opened)
    records = f"{found.end - found.first} records from {found.first} to {found.end}"
    text = f"{records}, {found.users} users, no damage"
    if found.lost:
        text += f"\n{found.lost} of them were damaged and dropped, so a replay from empty cannot be compared"
    if found.same is not None:
        text += f"\nreplay from empty equals the snapshot and its tail: {'yes' if found.same else 'NO'}"
    print_result(found, as_json, text)
    if found.same is False:
        raise typer.Exit(1)


@store.command()
def export(
    path: Annotated[Path, typer.Argument(help="Where to: a .parquet or a .dsjson file.")],
    store: StoreOption = "coterie.db",
) -> None:
    """Write all records as Parquet, or decisions as VW's dsjson.

    Parquet is whole and can be replayed; dsjson has a line per decision. The service may run meanwhile.
    """
    from coterie.data.logs.records import flatten
    from coterie.service.files.exports import write_dsjson, write_parquet
    from coterie.service.log.store import open_to_read

    writers = {".parquet": write_parquet, ".dsjson": write_dsjson}
    if path.suffix not in writers:
        raise ParameterError(f"{path} ends in {path.suffix!r}, expected .parquet or .dsjson")
    with closing(open_to_read(store)) as opened:
        count = writers[path.suffix](flatten(opened.read()), opened.users(), path)
    typer.echo(f"{count} {'records' if path.suffix == '.parquet' else 'decisions'} in {path}")


@store.command(name="import")
def import_(
    path: Annotated[Path, typer.Argument(help="A log that `coterie evaluate` reads: .parquet, .dsjson, …")],
    store: StoreOption = "coterie.db",
    settings: SettingsOption = None,
) -> None:
    """Learn what a file's decisions earned, before the service starts."""
    import asyncio

    from coterie.data.logs.interactions import open_interactions
    from coterie.service.coordination.coordinator import Coordinator
    from coterie.service.files.payoffs import payoffs_of
    from coterie.service.log.store import open_store
    from coterie.service.settings import read_settings

    file, pairs = split_settings(settings or [])
    read = read_settings(file, **{**pairs, "store": store})

    async def learn() -> int:
        coordinator = Coordinator(read, open_store(store))
        await coordinator.start()
        try:
            payoffs = list(payoffs_of(open_interactions(path, user_path=read.user_path)))
            coordinator.bandit.policies.check_shown(row.action for row in payoffs)  # all or nothing
            for start in range(0, len(payoffs), 1000):
                await coordinator.observe(payoffs[start : start + 1000])
            return len(payoffs)
        finally:
            await coordinator.stop()

    typer.echo(f"{asyncio.run(learn())} payoffs learned from {path}")


@store.command()
def cut(
    at: Annotated[int, typer.Option(help="The first record to give up.")],
    store: StoreOption = "coterie.db",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Give up the records from a damaged one on.

    The service then starts with what comes before.
    """
    from coterie.service.log.store import open_store

    with closing(open_store(store, create=False)) as opened:
        if not yes:
            typer.confirm(f"Give up all records from {at} on? Make a copy of the store first.", abort=True)
        typer.echo(f"{opened.cut(at)} records given up")


@store.command()
def repair(
    store: StoreOption = "coterie.db",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Drop what is damaged, and nothing else.

    Of the log, damaged records are dropped if a snapshot has what they said. Of SQLite's write-ahead log, what comes
    before the damage is kept, and the damaged file is put aside.
    """
    import shutil

    from coterie.service.log.damage import drop_damaged
    from coterie.service.log.sqlite_store import SqliteStore
    from coterie.service.log.store import is_postgres, open_store
    from coterie.service.private import open_private

    wal = Path(f"{store.removeprefix('sqlite://')}-wal")
    if not yes:
        typer.confirm(f"Drop what is damaged in {store}? Make a copy of it first.", abort=True)
    aside = not is_postgres(store) and wal.exists()
    if aside:
        with wal.open("rb") as damaged, open_private(Path(f"{wal}.damaged")) as kept:
            shutil.copyfileobj(damaged, kept)
    path_of = store.removeprefix("sqlite://")
    opened = (
        open_store(store, create=False)
        if is_postgres(store)
        else SqliteStore(path_of, trust_wal=True, create=False)
    )
    with closing(opened):
        dropped = drop_damaged(opened)
    for one in dropped:
        typer.echo(f"log records {one} were damaged, and are dropped")
    typer.echo(f"done; a copy of the write-ahead log is {wal}.damaged" if aside else "done")
