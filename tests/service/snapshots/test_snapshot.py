"""A snapshot is the state of one moment, copied part by part while everything goes on."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save

from coterie.data.logs.records import ShownAction
from coterie.data.logs.rules import Config
from coterie.service.coordination import sequencer
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.core.encoding import shown
from coterie.service.core.question import Action, Question
from coterie.service.log import pieces
from coterie.service.snapshots import saving, snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import START, Clock, bandit, flush, opened, settings_of, with_coordinator
from tests.service.snapshots.test_pieces import append, crowd

# A small table, so that effects make room for others, and so do users and events.
SMALL: dict[str, Any] = {
    "parameters": {"slots": 2500},
    "max_users": 700,
    "max_event_bytes": 900_000,
    "wait": 60.0,
}


def live(made: Bandit, chance: random.Random, clock: list[int], steps: int) -> None:
    """Let some of everything happen."""
    for _ in range(steps):
        clock[0] += chance.choice((0, 0, 1, 50))
        at, user = clock[0], f"user-{chance.randrange(1200)}"
        kind = chance.random()
        if kind < 0.55:
            features = [{name: chance.randrange(9) for name in "abcdef"}]
            actions = [Action(f"item-{chance.randrange(40)}", features), Action("x", [{"tone": "calm"}])]
            question = Question(f"e{at}-{chance.random()}", user, actions, [{"hour": chance.randrange(24)}])
            made.rank(question, at)
        elif kind < 0.9 and made.events:
            made.reward(chance.choice(list(made.events)), chance.random(), at)
        elif kind < 0.95:
            made.forget(user, at)
        else:
            made.observe(user, shown(f"item-{chance.randrange(40)}", [{"tone": "new"}], []), 1.0, at)


def finish(copy: snapshot.Copy, kept: dict[bytes, bytes], between: Callable[[], None]) -> tuple[bytes, int]:
    """Take all parts, something else in between; returns the snapshot, and how many parts were taken."""
    taken = 0
    for source, key, body in copy.parts():
        name = pieces.name_of(body)
        kept[name] = body
        copy.keep(source, key, name)
        taken += 1
        between()
    return copy.row(), taken


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_is_the_state_of_the_moment_in_which_it_began(seed: int) -> None:
    chance, clock, kept = random.Random(seed), [START], dict[bytes, bytes]()
    made = bandit(**SMALL)
    live(made, chance, clock, 2500)
    for round_ in range(6):
        truth = snapshot.dump(made)
        copy = snapshot.Copy(made, kept)
        row, _ = finish(copy, kept, lambda: live(made, chance, clock, chance.choice((0, 3, 40))))
        copy.end(kept=round_ != 3)  # one that could not be stored
        restored = snapshot.restore(row, None, kept.get)
        assert snapshot.dump(restored) == truth
        assert snapshot.dump(made) != truth
    assert "model" in made.policies.made
    assert made.policies.made["model"]._model.effects.table.counts[0] == 2500  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", ["configure", "reset", "import"])
def test_a_copy_of_a_model_that_is_replaced_meanwhile_is_whole(change: str) -> None:
    chance, clock, kept = random.Random(1), [START], dict[bytes, bytes]()
    made = bandit(**SMALL)
    live(made, chance, clock, 600)
    for _ in range(2):
        truth, done = snapshot.dump(made), list[int]()

        def between(done: list[int] = done) -> None:
            if not done and change == "configure":
                made.configure(Config(policy="linucb"), clock[0])
                made.configure(Config(**SMALL), clock[0])
            elif not done and change == "reset":
                made.reset(clock[0])
            elif not done:
                policy = made.policies.made["model"]
                assert policy is not None
                made.replace_model({}, {"model": (policy.learned, save(policy.tensors()))}, clock[0])
            done.append(1)
            live(made, chance, clock, 20)

        copy = snapshot.Copy(made, kept)
        row, _ = finish(copy, kept, between)
        copy.end(kept=True)
        assert snapshot.dump(snapshot.restore(row, None, kept.get)) == truth
    truth = snapshot.dump(made)
    copy = snapshot.Copy(made, kept)
    row, _ = finish(copy, kept, lambda: None)
    copy.end(kept=True)
    assert snapshot.dump(snapshot.restore(row, None, kept.get)) == truth


def test_what_was_not_kept_is_taken_again_and_what_was_kept_is_not() -> None:
    made, kept = crowd(900), dict[bytes, bytes]()
    _, everything = finish(snapshot.Copy(made, kept), kept, lambda: None)
    copy = snapshot.Copy(made)
    copy.end(kept=False)
    copy = snapshot.Copy(made, kept)
    assert finish(copy, kept, lambda: None)[1] == everything
    copy.end(kept=True)
    copy = snapshot.Copy(made, kept)
    always = finish(copy, kept, lambda: None)[1]
    copy.end(kept=True)
    assert always == 2  # the minutes and the items
    made.observe("user-1", ShownAction("item-1"), 1.0, START + 9000)
    copy = snapshot.Copy(made, kept)
    assert always + 2 <= finish(copy, kept, lambda: None)[1] < everything
    copy.end(kept=True)
    # A store that lost its pieces gets all of them.
    copy = snapshot.Copy(made, {})
    assert finish(copy, {}, lambda: None)[1] == everything
    copy.end(kept=True)


def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many bytes each turn of the event loop copies for a snapshot."""
    sizes: list[int] = []
    parts = snapshot.Copy.parts

    def noted(copy: snapshot.Copy) -> Iterator[tuple[str, str, bytes]]:
        for part in parts(copy):
            sizes.append(len(part[2]))
            yield part

    monkeypatch.setattr(snapshot.Copy, "parts", noted)
    return sizes


def snapshot_under_load(made: Bandit, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """Take a snapshot beside requests: what each turn copied, and how many requests came in between."""
    sizes = held(monkeypatch)
    # This test writes beside the sequencer, which would read that as the work of another service.
    monkeypatch.setattr(sequencer, "TAIL_EVERY", 3600.0)
    clock = Clock(made.now)

    async def work(coordinator: Coordinator) -> tuple[list[int], int, bytes]:
        requests = 0
        going = asyncio.create_task(coordinator.snapshot(alone=True))
        await asyncio.sleep(0)
        while not going.done():
            before = len(sizes)
            question = Question(f"e{requests}", f"user-{requests * 37 % 500}", [Action("a"), Action("b")])
            coordinator.bandit.rank(question, clock())
            coordinator.bandit.reward(f"e{requests}", 1.0, clock())
            flush(coordinator)
            requests += 1
            await asyncio.sleep(0)
            assert len(sizes) <= before + 1  # a turn copies one part
        await going
        truth = list(sizes)
        return truth, requests, snapshot.dump(coordinator.bandit)

    with opened(path) as store:
        append(store, made)
    taken, requests, state = with_coordinator(settings_of(path), work, clock)
    with opened(path) as store:
        assert snapshot.dump(recover(store)) == state
    return taken, requests


def test_a_turn_of_the_event_loop_copies_one_small_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = crowd(4000)
    made.names.clear()  # the store of this test has no names
    made.ids.clear()
    taken, requests = snapshot_under_load(made, tmp_path / "log.db", monkeypatch)
    assert len(taken) > 20
    assert max(taken) < 150_000
    assert requests >= len(taken) / 2


@pytest.mark.slow
def test_two_hundred_thousand_users_with_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, with as many parts as there are; then a start from the snapshot, and one that costs what changed."""
    made = crowd(200_000)
    path = tmp_path / "log.db"
    taken, requests = snapshot_under_load(made, path, monkeypatch)
    assert len(taken) > 1000
    assert max(taken) < 150_000
    assert requests >= len(taken) / 2
    with opened(path) as store:
        found = recover(store)
        assert len(found.users) >= 200_000
        before = store.pieces()
        found.observe("user-7", ShownAction("item-7"), 1.0, found.now)
        append(store, found)
        saving.save_now(found, store)
        assert len(store.pieces() - before) <= 20
        assert snapshot.dump(recover(store)) == snapshot.dump(found)
