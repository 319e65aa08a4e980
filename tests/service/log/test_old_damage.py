"""Damage in the log before the snapshot: the service starts, says it, goes on without it, and it can be dropped."""

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.data.logs.records import Rank, Tick, flatten
from coterie.data.logs.rules import Config
from coterie.errors import FileError
from coterie.service.backup import back_up, restore
from coterie.service.coordination.client_decisions import Decided
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.log.damage import Damaged, drop_damaged, find_damage, readable
from coterie.service.problems import Problem
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.checking import check
from coterie.service.snapshots.recovery import recover, relearn
from tests.service.helpers import ask, opened, served, settings_of, with_coordinator

N = 12


def _flip(path: Path, first: int) -> None:
    """Flip a bit in the batch that holds a record."""
    with closing(sqlite3.connect(path)) as rows, rows:
        place, body = rows.execute(
            "SELECT first, body FROM log WHERE first <= ? ORDER BY first DESC LIMIT 1", (first,)
        ).fetchone()
        changed = bytearray(body)
        changed[len(changed) // 2] ^= 4
        rows.execute("UPDATE log SET body = ? WHERE first = ?", (bytes(changed), place))


def _body(k: int) -> dict[str, Any]:
    return {"user": f"user-{k % 3}", "actions": [{"id": name} for name in "abc"], "eventId": f"event-{k}"}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A store of a service that was stopped: its snapshot has all that the log says."""
    path = tmp_path / "log.db"
    with served(path) as (client, _):
        for k in range(N):
            assert client.post("/v1/rank", json=_body(k)).status_code == 201
            rewarded = client.post(f"/v1/events/event-{k}/reward", json={"value": k % 2})
            assert rewarded.status_code == 200, rewarded.text
    return path


@pytest.fixture
def damaged(whole: Path) -> tuple[Path, Damaged]:
    _flip(whole, 5)
    with opened(whole) as store:
        (found,) = find_damage(store)
    assert found.first <= 5 <= found.last
    return whole, found


def test_a_whole_log_has_no_damage(whole: Path) -> None:
    with opened(whole) as store:
        assert find_damage(store) == []
        assert list(readable(store)) == list(store.read())
        assert list(readable(store, 7)) == list(store.read(7))
        assert drop_damaged(store) == []
        assert check(store).same is True


@pytest.mark.parametrize("place", [0, 3, 9, 2 * N])
def test_every_damaged_or_missing_batch_is_found(whole: Path, place: int) -> None:
    _flip(whole, place)
    with opened(whole) as store:
        (found,) = find_damage(store)
        assert found.first <= place <= found.last
        assert [batch.first for batch in readable(store)] == [
            0, *[batch.first + batch.count for batch in readable(store)][:-1],
        ]  # fmt: skip
    with closing(sqlite3.connect(whole)) as rows, rows:
        rows.execute("DELETE FROM log WHERE first = ? AND first > 0", (found.first,))
    with opened(whole) as store:
        assert find_damage(store) == [found]


def test_the_service_starts_says_it_and_goes_on(
    damaged: tuple[Path, Damaged], caplog: pytest.LogCaptureFixture
) -> None:
    path, found = damaged
    said = f"log records {found} are damaged, and are passed over"
    with caplog.at_level(logging.ERROR, "coterie.service"), served(path) as (client, coordinator):
        with client.portal() as portal:
            portal.call(coordinator.background.check_log)
        assert client.get("/readyz").json().items() >= {"status": "ready", "damage": said}.items()
        assert client.get("/readyz").status_code == 200
        assert client.get("/v1/statistics").json()["warning"] == said
        assert "coterie_log_damaged 1.0" in client.get("/metrics").text
        assert f"{said}; drop them with `coterie store repair`" in caplog.text
        for k in range(N):
            lost = found.first <= 1 + 2 * k <= found.last  # record 0 is the configuration
            answer = client.get(f"/v1/events/event-{k}")
            assert answer.status_code == (404 if lost else 200)
            # A retry of a decision that is lost is decided anew, or refused; others get their answer.
            again = client.post("/v1/rank", json=_body(k))
            assert again.status_code in ((201, 404) if lost else (201,))
        assert client.get("/v1/decisions").status_code == 200
        assert client.delete("/v1/users/user-1").status_code == 204


def test_a_decision_of_a_client_takes_the_place_of_one_that_is_lost(damaged: tuple[Path, Damaged]) -> None:
    path, found = damaged
    places = [k for k in range(N) if found.first <= 1 + 2 * k <= found.last]
    assert places

    async def keep(coordinator: Coordinator) -> None:
        coordinator.bandit.events.clear()  # they have left memory long ago
        asked = [ask(f"event-{k}", f"user-{k % 3}") for k in (*places, 100)]
        decided = [Decided(one, [0, 1, 2], [0.5, 0.25, 0.25]) for one in asked]
        assert await coordinator.keep_decisions(decided) == len(decided)
        assert await coordinator.keep_decisions(decided) == 0
        assert (await coordinator.rank(asked[0])).probability == 0.5

    with_coordinator(settings_of(path), keep)


@pytest.mark.parametrize(("user", "dropped"), [("user-2", True), ("user-1", False)])
def test_erasing_drops_damaged_records_of_the_user(
    damaged: tuple[Path, Damaged], user: str, dropped: bool
) -> None:
    """Record 5 is a decision for user-2, as the index knows."""
    path, found = damaged

    async def forget(coordinator: Coordinator) -> None:
        assert await coordinator.forget(user)

    with_coordinator(settings_of(path), forget)
    with opened(path) as store:
        assert store.scrubs() == []
        assert find_damage(store) == ([] if dropped else [found])
        assert recover(store).position == store.bounds()[1]


def test_another_policy_learns_what_is_left(damaged: tuple[Path, Damaged]) -> None:
    path, found = damaged
    with opened(path) as store:
        made = relearn(store, Config(policy="linucb"), store.bounds()[1])
        assert made.lost == found.last - found.first + 1
        assert 0 < made.policies.learned <= N

    async def change(coordinator: Coordinator) -> None:
        await coordinator.configure(Config(policy="linucb"))
        assert (await coordinator.rank(ask("new"))).probability > 0

    with_coordinator(settings_of(path), change)


def test_a_repair_drops_only_what_is_damaged(damaged: tuple[Path, Damaged]) -> None:
    path, found = damaged
    with opened(path) as store:
        before = snapshot.dump(recover(store))
        records = {k: record for k, record in flatten(readable(store)) if not found.first <= k <= found.last}
        with pytest.raises(FileError, match="drop them with `coterie store repair`"):
            check(store)
    done = CliRunner().invoke(app, ["store", "repair", "--store", str(path), "--yes"])
    assert done.exit_code == 0, done.output
    assert f"log records {found} were damaged, and are dropped" in done.output
    with opened(path) as store:
        after = dict(flatten(store.read()))
        assert {k: after[k] for k in records} == records
        for k in range(found.first, found.last + 1):
            assert after[k] == Tick(after[k].at, lost=True)
        assert snapshot.dump(recover(store)) == before
        checked = check(store)
        assert (checked.same, checked.lost) == (None, found.last - found.first + 1)
    done = CliRunner().invoke(app, ["store", "check", "--store", str(path)])
    assert "were damaged and dropped" in done.output

    async def live(coordinator: Coordinator) -> None:
        assert coordinator.background.damage is None
        await coordinator.rank(ask("new"))
        assert await coordinator.reward("new", 1.0) == "applied"

    with_coordinator(settings_of(path), live)


def test_a_backup_of_it_can_be_made_and_restored(damaged: tuple[Path, Damaged], tmp_path: Path) -> None:
    path, found = damaged
    made = back_up(str(path), tmp_path / "backup.db")
    assert made.dropped == found.last - found.first + 1
    assert restore(tmp_path / "backup.db", str(tmp_path / "again.db")).lost == made.dropped
    with opened(tmp_path / "again.db") as again, opened(path) as store:
        assert snapshot.dump(recover(again)) == snapshot.dump(recover(store))


def test_damage_after_the_snapshot_is_not_dropped(whole: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(whole)) as rows, rows:
        rows.execute("DELETE FROM snapshots")
    _flip(whole, 5)
    with opened(whole) as store:
        with pytest.raises(FileError, match="no snapshot has what they said; restore a backup"):
            drop_damaged(store)
        with pytest.raises(FileError, match="their checksum does not fit"):
            recover(store)
    with pytest.raises(FileError, match="no snapshot has what they said"):
        back_up(str(whole), tmp_path / "backup.db")


def test_records_removed_meanwhile_are_no_damage(whole: Path) -> None:
    with opened(whole) as store:
        reading = readable(store, on_damage=lambda found, new: pytest.fail(str(found)))
        next(reading)
        store.compact(store.bounds()[1])
        assert isinstance(list(reading), list)


def test_a_stop_ends_the_check(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def slow(store: Any, ended: Any) -> list[Damaged]:
        started.append(ended)
        while not ended():
            pass
        return []

    monkeypatch.setattr("coterie.service.coordination.background.find_damage", slow)

    async def live(coordinator: Coordinator) -> None:
        while not started:
            await asyncio.sleep(0.01)
        with pytest.raises(Problem, match="not known"):
            await coordinator.event("nobody")

    with_coordinator(settings_of(whole), live)
    assert started[0]()


def test_lost_decisions_are_no_decisions(damaged: tuple[Path, Damaged]) -> None:
    path, _ = damaged
    with opened(path) as store:
        assert sum(isinstance(record, Rank) for _, record in flatten(readable(store))) < N
