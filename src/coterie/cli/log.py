"""`coterie log`: look at a service's log, take it out, bring one in, and repair it."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.extra import need_service
from coterie.errors import ParameterError

log = typer.Typer(name="log", no_args_is_help=True, help="Check, export, import and repair a service's log.")

Where = Annotated[str, typer.Option(help="The service's store: a file, or postgresql://…")]


@log.command()
def check(store: Where = "coterie.db") -> None:
    """Replay the log from empty and from the snapshot, and compare the two bit for bit."""
    need_service()
    from coterie.service import snapshot
    from coterie.service.recovery import recover
    from coterie.service.store import open_store

    with closing(open_store(store)) as opened:
        first, end = opened.bounds()
        engine = recover(opened)
        typer.echo(f"{end - first} records from {first} to {end}, {len(engine.users)} users, no damage")
        if first == 0:
            same = snapshot.dump(engine) == snapshot.dump(recover(opened, from_empty=True))
            typer.echo(f"replay from empty equals the snapshot and its tail: {'yes' if same else 'NO'}")
            if not same:
                raise typer.Exit(1)


@log.command()
def export(
    path: Annotated[Path, typer.Argument(help="Where to: a .parquet or a .dsjson file.")],
    store: Where = "coterie.db",
) -> None:
    """Write the log as Parquet (whole, replayable) or as VW dsjson (a line a decision)."""
    need_service()
    from coterie.service.exchange import export_log, write_dsjson, write_parquet
    from coterie.service.store import open_store

    writers = {".parquet": write_parquet, ".dsjson": write_dsjson}
    if path.suffix not in writers:
        raise ParameterError(f"{path} ends in {path.suffix!r}, expected .parquet or .dsjson")
    with closing(open_store(store)) as opened:
        count = writers[path.suffix](export_log(opened), opened.users(), path)
    typer.echo(f"{count} {'records' if path.suffix == '.parquet' else 'decisions'} in {path}")


@log.command(name="import")
def import_(
    path: Annotated[Path, typer.Argument(help="An exported .parquet, or a .dsjson of any origin.")],
    store: Where = "coterie.db",
    settings: Annotated[Path | None, typer.Option(help="The service's TOML file, for its policy.")] = None,
) -> None:
    """Learn what a file's decisions earned, before the service starts."""
    need_service()
    import asyncio

    from coterie.service.desk import Desk
    from coterie.service.exchange import payoffs_of, read_dsjson, read_parquet
    from coterie.service.settings import read_settings
    from coterie.service.store import open_store

    read = read_settings(settings, store=store)

    async def learn() -> int:
        desk = Desk(read, open_store(store))
        await desk.start()
        try:
            if path.suffix == ".parquet":
                payoffs = list(payoffs_of(read_parquet(path), config=desk.engine.config))
            elif path.suffix == ".dsjson":
                payoffs = list(read_dsjson(path, desk.engine.config, read.user_path))
            else:
                raise ParameterError(f"{path} ends in {path.suffix!r}, expected .parquet or .dsjson")
            items = {row.paid.item for row in payoffs if row.paid.item is not None}
            desk.engine.check_items(items)  # all or nothing
            for start in range(0, len(payoffs), 1000):
                part = payoffs[start : start + 1000]
                await desk.observe([(row.user, row.paid, row.value) for row in part])
            return len(payoffs)
        finally:
            await desk.stop()

    typer.echo(f"{asyncio.run(learn())} payoffs learned from {path}")


@log.command()
def cut(
    at: Annotated[int, typer.Option(help="The first record to give up.")],
    store: Where = "coterie.db",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Give up the log from a damaged record on, so that the service starts with what comes before."""
    need_service()
    from coterie.service.store import open_store

    with closing(open_store(store)) as opened:
        if not yes:
            typer.confirm(f"Give up all records from {at} on? Make a copy of the store first.", abort=True)
        typer.echo(f"{opened.cut(at)} records given up")


@log.command()
def repair(
    path: Annotated[Path, typer.Argument(help="The store's file, whose write-ahead log is damaged.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Keep what comes before the damage in a write-ahead log, and put the damaged file aside."""
    need_service()
    import shutil

    from coterie.service.private import open_private
    from coterie.service.sqlite_store import SqliteStore

    wal = Path(f"{path}-wal")
    if not yes:
        typer.confirm(f"Give up what lies behind the damage in {wal}? A copy is kept.", abort=True)
    if wal.exists():
        with wal.open("rb") as damaged, open_private(Path(f"{wal}.damaged")) as kept:
            shutil.copyfileobj(damaged, kept)
    SqliteStore(str(path), trust_wal=True).close()
    typer.echo(f"done; the damaged file is {wal}.damaged")
