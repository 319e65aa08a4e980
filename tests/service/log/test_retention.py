"""The log is bounded by age and by bytes, and a decision that still waits is never removed."""

import logging
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.data.logs.records import Batch, Tick, encode, pack
from coterie.data.logs.rules import Config
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.question import Action, Question
from coterie.service.log import store as store_module
from coterie.service.log.erasure import scrub
from coterie.service.log.retention import remove_old
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append
from coterie.service.serve import make_app
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import Clock, ask, bandit, opened, settings_of, with_coordinator
from tests.service.log.test_store import Open, again, database  # noqa: F401
from tests.service.snapshots.test_pieces import append


def test_the_oldest_records_go_until_the_log_fits(again: Open) -> None:  # noqa: F811
    store = again()
    for first in range(100):
        store.append(Append(pack(first, [encode(Tick(first))])))
    store.save_snapshot(80, b"one", alone=True)
    size = store.log_bytes()
    each = size // 100
    assert remove_old(store, largest=size).records == 0
    done = remove_old(store, largest=size // 2)
    assert size // 2 * 0.95 - each <= done.size <= size // 2 * 0.95
    assert store.bounds() == (done.records, 100)
    assert store.log_bytes() == done.size == sum(len(batch.body) for batch in store.read())
    kept = remove_old(store, largest=each, keep_from=70)
    assert (store.bounds()[0], kept.too_large) == (70, True)
    assert remove_old(store, largest=each).too_large  # the snapshot at 80 needs what comes after it
    assert store.bounds() == (80, 100)


def test_decisions_that_wait_stay_and_learn_their_reward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wait of 30 days, memory for a few events, and a log that may keep almost nothing."""
    config = Config(wait=2_592_000.0, max_event_bytes=20_000)
    settings = settings_of(tmp_path / "log.db", config, max_log_bytes=2_000)
    clock = Clock()

    async def work(coordinator: Coordinator) -> None:
        await coordinator.configure(Config(wait=60.0, max_event_bytes=20_000))
        for k in range(100):
            await coordinator.rank(ask(f"short-{k}"))
        clock.turn(100)
        await coordinator.configure(config)
        for k in range(100):
            await coordinator.rank(ask(f"long-{k}"))
        clock.turn(29 * 86_400)
        for _ in range(3):
            await coordinator.snapshot()
            await coordinator.background._remove_old()
        first, _ = coordinator.store.bounds()
        assert 100 < first <= (await coordinator.event("long-0")).position
        assert "short-0" not in coordinator.bandit.events
        assert not await coordinator.knows("short-0")
        assert [await coordinator.reward(f"long-{k}", 1.0) for k in range(100)] == ["applied"] * 100
        assert coordinator.bandit.statistics.total.earned == 100
        assert snapshot.dump(recover(coordinator.store)) == snapshot.dump(coordinator.bandit)

    with caplog.at_level(logging.INFO):
        with_coordinator(settings, work, clock)
    assert "records were removed from the log (retention-days is -1, max-log-bytes 2,000)" in caplog.text
    assert "because decisions still wait for their rewards" in caplog.text


def test_an_erasure_reads_only_the_batches_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bandit()
    with opened(tmp_path / "log.db") as store:
        for k in range(60):
            made.rank(ask(f"e{k}", "ann" if k in (7, 30) else f"user-{k}"), 10**12)
            append(store, made)
            made.reward(f"e{k}", 1.0, 10**12)
            append(store, made)
        number = made.names["ann"]
        made.forget("ann", 10**12)
        append(store, made)
        # Two decisions, two rewards, and that the user is forgotten.
        assert len(store.batches_of([number])) == 5
        reads: list[int] = []
        monkeypatch.setattr(store, "read", lambda *_: pytest.fail("the whole log is read"))

        def batch_at(first: int) -> Batch | None:
            reads.append(first)
            return SqliteStore.batch_at(store, first)

        monkeypatch.setattr(store, "batch_at", batch_at)
        assert scrub(store, [number]) == 4
        assert len(set(reads)) == 5
        assert store.locate("e7") is None
        assert store.locate("e8") is not None


def test_an_early_removal_is_an_alert(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the metrics, the statistics and the log; and nothing is learned."""
    settings = settings_of(tmp_path / "log.db", Config(max_event_bytes=1_000, default_reward=-1.0))
    app = make_app(settings, SqliteStore(settings.store))
    with TestClient(app, base_url="http://127.0.0.1") as client, caplog.at_level(logging.WARNING):
        for k in range(40):
            body = {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}], "eventId": f"e{k}"}
            assert client.post("/v1/rank", json=body).status_code == 201
        said = client.get("/v1/statistics").json()
        assert said["removedEarly"] == 9
        assert "9 events were removed before their wait had ended, and learned nothing" in said["warning"]
        assert said["total"]["learned"] == 0
        assert "coterie_events_removed_early 9.0" in client.get("/metrics").text
        for _ in range(2):
            app.metrics.coordinator.background._watch_removals()
    assert caplog.text.count("raise max-event-bytes, or shorten the wait") == 1


def test_a_wait_of_thirty_days_is_the_longest() -> None:
    made = bandit(wait=2_592_000.0)
    made.rank(Question("e", "ann", [Action("a")]), 10**12)
    made.tick(10**12 + 2_591_999_000)
    assert made.reward("e", 1.0, 10**12 + 2_591_999_500) == "applied"


def test_a_removal_is_done_in_steps_of_which_each_leaves_a_whole_log(
    again: Open,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commits of others come in between; a crash may come there, too."""
    monkeypatch.setattr(store_module, "REMOVED", 60)
    store = again()
    for first in range(0, 40, 2):
        store.append(Append(pack(first, [encode(Tick(first)), encode(Tick(first))])))
    seen: list[tuple[int, int]] = []
    changing = store._changing

    def counted(*given: Any, **more: Any) -> Any:
        seen.append(store.bounds())
        return changing(*given, **more)

    monkeypatch.setattr(store, "_changing", counted)
    store.compact(31)  # inside of a batch, which stays
    assert store.bounds() == (30, 40)
    assert len(seen) > 3
    assert all(first % 2 == 0 for first, _ in seen)
    assert [batch.first for batch in store.read()] == [30, 32, 34, 36, 38]
