"""R2: a reward is learned exactly once, however often, late or out of order, across crashes: beside a model."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from coterie.data.logs.rules import Config
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import ranking_of
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.settings import Settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import Clock, ask

WAIT = 10.0
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


class Service(RuleBasedStateMachine):
    """A coordinator that is used, crashed and restarted, beside a dictionary that says what should be."""

    events = Bundle("events")
    users = st.sampled_from(["ann", "bob", "cat"])

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.clock = Clock()
        self.runs = 0
        self.asked = 0
        self.model: dict[str, dict[str, Any]] = {}
        self.learned = 0
        self.answers: dict[str, Any] = {}
        self.store: SqliteStore
        self.coordinator: Coordinator

    @initialize()
    def start(self) -> None:
        self.store = SqliteStore(str(self.folder / f"log-{self.runs}.db"))
        config = Config(wait=WAIT, exploration=0.5, default_reward=0.1, parameters={"slots": 4096})
        self.coordinator = Coordinator(Settings(config=config), self.store, self.clock)
        self._do(self.coordinator.start())

    def _do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def _expire(self) -> None:
        for event in self.model.values():
            if event["state"] in ("waiting", "deferred") and event["deadline"] <= self.clock.now:
                self.learned += event["state"] == "waiting"
                event["state"] = "closed"

    @rule(target=events, user=users, number=st.integers(0, 10**9), deferred=st.booleans())
    def rank(self, user: str, number: int, deferred: bool) -> str:
        self.asked += 1
        name = f"e{number}-{self.asked}"
        question = ask(name, user, deferred=deferred)
        self._expire()
        self.answers[name] = (question, ranking_of(self._do(self.coordinator.rank(question))))
        self.model[name] = {
            "user": user,
            "state": "deferred" if deferred else "waiting",
            "deadline": self.clock.now + int(WAIT * 1000),
        }
        return name

    @rule(name=events)
    def retry(self, name: str) -> None:
        if name in self.model:
            question, answer = self.answers[name]
            assert ranking_of(self._do(self.coordinator.rank(question))) == answer

    @rule(name=events, value=st.floats(-1, 1))
    def reward(self, name: str, value: float) -> None:
        self._expire()
        event = self.model.get(name)
        outcome = self._do(self.coordinator.reward(name, value))
        if event is None:
            assert outcome == "unknown_event"
        elif event["state"] == "deferred":
            assert outcome == "not_activated"
        elif event["state"] == "closed":
            assert outcome == "late"
        elif event["state"] == "rewarded":
            assert outcome == "duplicate"
        else:
            assert outcome == "applied"
            event["state"] = "rewarded"
            self.learned += 1

    @rule(name=events)
    def activate(self, name: str) -> None:
        self._expire()
        assert self._do(self.coordinator.activate(name)) == (name in self.model)
        if name in self.model and self.model[name]["state"] == "deferred":
            self.model[name]["state"] = "waiting"

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.999, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.turn(seconds)

    @rule()
    def tick(self) -> None:
        self._do(self.coordinator.background.tick())
        self._expire()

    @rule(user=users)
    def forget(self, user: str) -> None:
        self._expire()
        known = user in self.coordinator.bandit.names
        assert self._do(self.coordinator.forget(user)) == known
        self.model = {name: event for name, event in self.model.items() if event["user"] != user}

    @rule(unused=consumes(events))
    def unknown(self, unused: str) -> None:
        assert self._do(self.coordinator.reward(f"{unused}-x", 1.0)) == "unknown_event"

    @rule()
    def crash(self) -> None:
        """Take the files as kill −9 leaves them, and start from those."""
        before = snapshot.dump(self.coordinator.bandit)
        old = self.store.path
        self.runs += 1
        new = self.folder / f"log-{self.runs}.db"
        for file in (old, Path(f"{old}-wal")):
            if file.exists():
                shutil.copy(file, str(file).replace(str(old), str(new)))
        self._do(self.coordinator.stop())
        self.store = SqliteStore(str(new))
        assert snapshot.dump(recover(self.store)) == before
        assert snapshot.dump(recover(self.store, from_empty=True)) == before
        self.store.close()
        self.start()

    @rule()
    def restart(self) -> None:
        before = snapshot.dump(self.coordinator.bandit)
        self._do(self.coordinator.stop())
        self.start()
        assert snapshot.dump(self.coordinator.bandit) == before

    @invariant()
    def every_reward_was_learned_once(self) -> None:
        self_learned = self.coordinator.bandit.policies.learned if hasattr(self, "coordinator") else 0
        pending = sum(
            event["state"] == "waiting" and event["deadline"] <= self.clock.now
            for event in self.model.values()
        )
        assert self.learned <= self_learned <= self.learned + pending

    def teardown(self) -> None:
        if hasattr(self, "coordinator"):
            self._do(self.coordinator.stop())
        self.loop.close()
        shutil.rmtree(self.folder)


Service.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestService = Service.TestCase
