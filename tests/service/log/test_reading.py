"""Reading a store beside the service that writes to it: `store check`, `store export` and `evaluate`."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import psycopg
import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.data.logs.rules import Config
from coterie.errors import FileError
from coterie.evaluation import open_interactions
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.log.reading import LogReader
from coterie.service.log.store import Append, Store, open_store, open_to_read
from coterie.service.settings import Settings
from coterie.service.store_errors import PassingError, StoreError
from tests.service import postgres
from tests.service.helpers import Clock, ask


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "log.db")
    return postgres.emptied(request.getfixturevalue("server"))


def _run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def test_a_store_is_checked_exported_and_evaluated_while_its_service_writes(
    store: str, tmp_path: Path
) -> None:
    async def go() -> None:
        coordinator = Coordinator(Settings(config=Config(wait=60.0)), open_store(store, shared=True), Clock())
        await coordinator.start()
        for k in range(12):
            await coordinator.rank(ask(f"e{k}", f"user-{k % 3}"))
            await coordinator.reward(f"e{k}", 0.5)
            if k == 5:
                await coordinator.snapshot()
        position = coordinator.bandit.position
        said = await asyncio.to_thread(_run, "store", "check", "--store", store)
        assert f"from 0 to {position}" in said
        assert "equals the snapshot and its tail: yes" in said
        path = str(tmp_path / "log.dsjson")
        assert "12 decisions" in await asyncio.to_thread(_run, "store", "export", path, "--store", store)
        out = ("--policies", "logged,uniform", "--out", str(tmp_path / "out"))
        assert "12 decisions" in await asyncio.to_thread(_run, "evaluate", store, *out)
        await coordinator.rank(ask("after"))
        await coordinator.stop()
        assert coordinator.saved

    asyncio.run(go())
    assert len(open_interactions(store).interactions) == 13


def test_what_is_written_later_is_not_seen_and_nothing_can_be_written(store: str) -> None:
    async def go() -> None:
        coordinator = Coordinator(Settings(), open_store(store, shared=True), Clock())
        await coordinator.start()
        await coordinator.rank(ask("before"))
        with closing(await asyncio.to_thread(open_to_read, store)) as reading:
            end = reading.bounds()[1]
            await coordinator.rank(ask("after"))
            assert reading.bounds()[1] == end < coordinator.store.bounds()[1]
            batch = next(iter(coordinator.store.read(end)))
            with pytest.raises(StoreError):
                reading.append(Append(batch))
        assert coordinator.refusing is None
        await coordinator.stop()

    asyncio.run(go())


def test_a_database_without_a_store_is_named_and_left_as_it_is(server: str) -> None:
    with psycopg.connect(postgres.emptied(server), autocommit=True) as connection:
        for read in (open_interactions, open_to_read):
            with pytest.raises(FileError, match="there is no store in the database"):
                read(server)
        query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.execute(query).fetchone() == (0,)


def test_a_decision_that_is_needed_to_apply_a_record_is_waited_for() -> None:
    """What is half applied cannot be undone, so a store that is away for a moment must not end the service."""
    left = [PassingError("away")] * 3

    class Away:
        def batch_at(self, position: int) -> None:
            if left:
                raise left.pop()

    reader = LogReader(cast(Store, Away()))
    assert reader.decision(0) is None
    assert not left
    left.append(PassingError("away"))
    with pytest.raises(PassingError, match="away"):
        reader.record(0)  # for a request, which can be sent again
