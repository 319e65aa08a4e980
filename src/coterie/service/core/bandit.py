"""The service's contextual bandit: its policies, users and events. Its state is a function of the log.

Every change of state is a record, and `apply` is the only code that makes it. The running service plans a record,
applies it and hands it to the log; recovery applies the same records again. Time and chance enter through records
only: a wait ends with a Tick, and a uniform choice is drawn from the event's id.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.errors import CoterieError
from coterie.policies import Decision
from coterie.policies.cab import Engine as Shards
from coterie.service.core.deciding import Candidates, decide, decide_ahead, read_candidates
from coterie.service.core.events import Event, Outcome, Paid, State, new_event
from coterie.service.core.names import Names
from coterie.service.core.policies import Policies, paid_for
from coterie.service.core.policy_config import KINDS, Kind, check_config, same_model
from coterie.service.core.question import Question
from coterie.service.core.records import (
    Activate,
    Configure,
    Drained,
    Forget,
    Import,
    Observe,
    Rank,
    Record,
    Reset,
    Reward,
    Tick,
    encode,
)
from coterie.service.core.remembered import Remembered, User
from coterie.service.figures.statistics import Statistics
from coterie.service.problems import Problem
from coterie.service.settings import Config
from coterie.service.trial.assignment import (
    NAMES,
    OUTSIDE,
    Arm,
    alone,
    assign,
    challenger_of,
    compared,
    salt_of,
    shares,
)
from coterie.service.trial.lift import Sums, Trial

Answer = Rank | Event | CoterieError  # to a question: a new decision, the event of a retry, or what is wrong


class Bandit:
    """Decides, learns and forgets: plain, synchronous, and without a clock."""

    def __init__(self, shards: Shards | None = None) -> None:
        self.refuse_partial = False  # whether to refuse decisions while some users' models are missing
        self.config = Config()
        self.contract: dict[str, Any] = {}  # what Personalizer's configuration has and `config` has not
        self.policies = Policies(shards)
        self.position = 0  # of the next record
        self.now = 0  # the time of the last record, milliseconds
        self.remembered = Remembered()
        self.events = self.remembered.events  # oldest first
        self.users = self.remembered.users  # unseen for longest first
        self.next_user = 0
        self.statistics = Statistics()
        self.trial: Trial | None = None  # what each arm earned, while there are several
        self.challenger: Bandit | None = None  # another model, which learns from the same records
        self.kept: dict[str, dict[str, bytes]] = {}  # where the parts of the last snapshot are; see snapshot
        self.user_names = Names()
        self.names, self.ids = self.user_names.numbers, self.user_names.ids  # name → number, number → name
        self.outbox: list[bytes] = []  # applied, but not yet handed to the log
        self.scrub: list[int] = []  # forgotten on demand: their records are to be scrubbed
        # Given a change of policy, returns a bandit that learned the log so far with the new one.
        self.relearn: Callable[[Config], Bandit] | None = None
        self.tap: list[Record] | None = None  # new records are also put here, for bandits that catch up
        self.fixed: Config | None = None  # when relearning: the model to learn with, whatever the log says
        self.partial = False  # whether the log begins later: rewards may be for decisions that are gone

    # Requests. Each plans records, applies them, and leaves them in the outbox.

    def configure(self, config: Config, at: int, contract: Mapping[str, Any] | None = None) -> None:
        """Decide and learn by other rules from here on; `contract` stays as it is unless given."""
        check_config(config)
        kept = self.contract if contract is None else dict(contract)
        if self.position == 0 or (config, kept) != (self.config, self.contract):
            at = self._at(at)
            running = None if self.trial is None else self.trial.salt
            salt = salt_of(self.config, config, running, f"{at}-{self.position}")
            self._emit(Configure(at, config, kept, salt))

    def rank(
        self,
        question: Question,
        at: int,
        ahead: tuple[Candidates, Decision] | None = None,
        gone: int | None = None,
    ) -> Rank | Event:
        """Decide, or use what was decided `ahead`; for a retry, return the event of the logged decision.

        If that decision was at the position `gone`, which the log no longer has, it is made again.
        """
        at = self._at(at)
        digest = question.digest()
        known = self.events.get(question.event)
        if known is not None and known.position != gone:
            known.check_retry(digest)
            return known
        record, _ = self._decide(question, digest, at, ahead)
        self.keep(question, record)
        return record

    def keep(self, question: Question, record: Rank) -> None:
        """Apply a decision, and leave it for the log."""
        self.user_names.put(record.user, question.user)
        self._emit(record)

    def decide(self, question: Question, at: int) -> Rank:
        """Return a new decision, for `keep`; only the time changes."""
        return self._decide(question, question.digest(), self._at(at))[0]

    def rank_many(self, questions: Sequence[Question], at: int) -> list[Answer]:
        """Call `rank` for each, with one call to the models for all; an error is returned in its place."""
        at = self._at(at)
        users = [self.number_of(question.user) for question in questions]
        ahead = decide_ahead(questions, users, [self._decider(question)[1] for question in questions])
        found: list[Answer] = []
        for question, decided in zip(questions, ahead, strict=True):
            try:
                found.append(self.rank(question, at, decided))
            except CoterieError as error:
                found.append(error)
        return found

    def what_if(self, question: Question) -> tuple[Rank, Decision]:
        """Return what `rank` would decide now and why; nothing is recorded."""
        return self._decide(question, b"", self.now)

    def _decide(
        self, question: Question, digest: bytes, at: int, ahead: tuple[Candidates, Decision] | None = None
    ) -> tuple[Rank, Decision]:
        """Let the policy decide, or the challenger's for a user in its arm."""
        user, (arm, decider) = self.number_of(question.user), self._decider(question)
        if self.challenger is not None:
            other = self if decider is self.challenger else self.challenger
            # The other one will learn from it, so it may refuse it.
            read_candidates(question, other.config, other.policies)
        record, made = decide(question, digest, at, user, arm, decider.config, decider.policies, ahead)
        if made.seen is not None and self.refuse_partial:
            missing = made.seen.of - made.seen.shards
            message = f"{missing} of {made.seen.of} shards are being rebuilt; try again in a moment"
            raise Problem(503, "shards_down", message, 1)
        return record, made

    def _decider(self, question: Question) -> "tuple[Arm, Bandit]":
        """Return the arm of a decision, and whose policy decides in it."""
        if self.trial is None:
            return OUTSIDE, self
        arm = assign(self.config, question.user, question.parent or question.event, self.trial.salt)
        return arm, self.challenger if arm.name == "challenger" and self.challenger is not None else self

    def reward(self, event: str, value: float, at: int, name: str | None = None) -> Outcome:
        """Learn a reward, or say why it was not learned."""
        at = self._at(at)
        if event not in self.events:
            return "unknown_event"
        outcome = self.events[event].outcome(name)
        self._emit(Reward(at, event, value, outcome, name))
        return outcome

    def activate(self, event: str, at: int) -> bool:
        """Say that a deferred decision was shown; returns whether the event is known."""
        at = self._at(at)
        found = self.events.get(event)
        if found is None:
            return False
        if found.state == "deferred":
            self._emit(Activate(at, event))
        return True

    def forget(self, user: str, at: int) -> int | None:
        """Drop a user from the model at once; returns the number to scrub from the log, or None."""
        at = self._at(at)
        number = self.names.get(user)
        if number is not None:
            self._emit(Forget(at, number))
        return number

    def observe(
        self,
        user: str,
        value: float,
        at: int,
        item: str | None,
        x: bytes | None = None,
        hashed: bytes | None = None,
    ) -> None:
        """Learn a payoff that was not earned here."""
        number = self.number_of(user)
        at = self._at(at)
        self.user_names.put(number, user)
        self._emit(Observe(at, number, value, item, x, hashed))

    def reset(self, at: int) -> None:
        """Empty the model."""
        self._emit(Reset(self._at(at)))

    def replace_model(
        self, users: Mapping[int, str], policies: Mapping[Kind, tuple[int, bytes] | None], at: int
    ) -> None:
        """Use the model of a file, which `model_file` has checked."""
        at = self._at(at)
        for number, name in users.items():
            self.user_names.put(number, name)
        self._emit(Import(at, tuple(users), *(policies.get(kind) for kind in KINDS)))

    def tick(self, at: int) -> None:
        """End the waits that are over."""
        self._at(at)

    def jump(self, at: int, by: int) -> None:
        """Continue from another time of day; all waits keep their length."""
        self._emit(Tick(at, by))

    def drain(self) -> Drained:
        """Return the records, new names, gone and forgotten users since the last call, for the log."""
        out = Drained(self.outbox, *self.user_names.changes(), self.scrub)
        self.outbox, self.scrub = [], []
        return out

    def number_of(self, user: str) -> int:
        """Return a user's number; for a new user, the number that the next one gets."""
        return self.names.get(user, self.next_user)

    def _at(self, at: int) -> int:
        """Return the time for the next record, after ending the waits that are over by then."""
        at = max(at, self.now)
        deadlines = self.remembered.deadlines
        if deadlines and deadlines[0][0] <= at:
            self._emit(Tick(at))
        return at

    def _emit(self, record: Record) -> None:
        self.apply(record)
        self.outbox.append(encode(record))
        if self.tap is not None:
            self.tap.append(record)

    # Records: the only code that changes state, the same in the running service and in a replay.

    def apply(self, record: Record) -> None:
        """Change the state as one record says."""
        self.now = record.at
        if self.partial and isinstance(record, Reward | Activate) and record.event not in self.events:
            pass  # its decision is gone, and with it what it was for
        elif isinstance(record, Rank):
            self._apply_rank(record)
        elif isinstance(record, Reward):
            self._apply_reward(record)
        elif isinstance(record, Tick):
            if record.jump:
                self.remembered.move_deadlines(record.jump)
            for event in self.remembered.over(record.at):
                self._close(event, record.at)
        elif isinstance(record, Activate):
            found = self.events.get(record.event)
            if found is not None:  # a challenger may not know it: its rank was no longer in the log
                self.remembered.touch_event(found)
                found.state = "waiting"
        elif isinstance(record, Forget):
            self._apply_forget(record)
        elif isinstance(record, Observe):
            user = self._see(record.user, record.at)
            user.learned += 1
            user.earned += record.value
            self._learn(record.user, Paid(record.item, record.x, record.hashed), record.value)
        elif isinstance(record, Configure):
            self._apply_configure(record)
        elif isinstance(record, Import):
            for number in record.users:
                self._see(number, record.at)
            if self.fixed is None:  # a bandit that relearns has another model than the file
                self.policies.restore(record, self.config)
        else:
            self.policies.clear()
            self.policies.known_items = {}
        self.position += 1
        if self.challenger is not None:
            self.challenger.apply(record)
            self.challenger.drain()

    def _apply_rank(self, record: Rank) -> None:
        user = self._see(record.user, record.at)
        user.decisions += 1
        if record.event in self.events:  # decided again, because the log no longer has the first decision
            self.remembered.drop_event(self.events[record.event])
        paid = paid_for(record, self.config)
        known = self.policies.known_items
        if paid.item is not None and not all(map(known.__contains__, record.actions)):
            for k, name in enumerate(record.actions):
                if k not in record.excluded:
                    known.setdefault(name)
        self.remembered.put_event(new_event(record, self.position, paid, self.config.wait))
        self.statistics.decided(record)
        while len(self.events) > self.config.max_events:
            oldest = next(iter(self.events.values()))
            self._close(oldest, record.at)
            self.remembered.drop_event(oldest)

    def _apply_reward(self, record: Reward) -> None:
        event = self.events.get(record.event)
        if record.outcome != "applied" or event is None:  # a challenger may not know the event, see Activate
            return
        self.remembered.touch_event(event)
        event.value += record.value
        event.counted += 1
        if record.name is not None:
            event.rewards = (*event.rewards, record.name)
        if self.config.aggregation == "earliest":
            self._settle(event, "rewarded", event.payoff("earliest"), record.at)

    def _apply_forget(self, record: Forget) -> None:
        for event in [event for event in self.events.values() if event.user == record.user]:
            self.remembered.drop_event(event)
        self.scrub.append(record.user)
        if record.user in self.users:
            self._drop(record.user)

    def _apply_configure(self, record: Configure) -> None:
        old, new = self.config, record.config
        if self.fixed is not None:
            new = alone(same_model(new, self.fixed))
        self.config, self.contract = new, record.contract
        self._begin_trial(old, new, record)
        if same_model(old, new) == old:
            return
        if self.relearn is None:
            self.policies.clear()
            return
        other = self.relearn(new)
        self.policies.take(other.policies)
        self.remembered.take_events(list(other.events.values()))

    def _begin_trial(self, old: Config, new: Config, record: Configure) -> None:
        """Start, continue or end the comparison of arms that the new rules ask for."""
        wanted = challenger_of(new)
        if wanted is None:
            self.challenger = None
        elif self.challenger is None or same_model(self.challenger.config, wanted) != self.challenger.config:
            self.challenger = self._new_challenger(wanted)
        if not any(shares(new)):
            self.trial = None
        elif self.trial is None or compared(old) != compared(new):
            self.trial = Trial(self.position, record.at, {name: Sums() for name in NAMES}, record.salt)

    def _new_challenger(self, config: Config) -> "Bandit":
        """Return a bandit that learned the log so far with another model, or an empty one if there is no log."""
        if self.relearn is not None:
            return self.relearn(config)
        made = Bandit(self.policies.shards)
        made.position, made.now = self.position, self.now
        made.fixed = made.config = config
        return made

    def _close(self, event: Event, at: int) -> None:
        """End an event's wait: learn its rewards, or the default; a decision that was never shown teaches nothing."""
        if event.state == "deferred":
            self.remembered.end_wait(event, "discarded")
        elif event.state == "waiting":
            if event.counted:
                self._settle(event, "rewarded", event.payoff(self.config.aggregation), at)
            else:
                self._settle(event, "expired", self.config.default_reward, at)

    def _settle(self, event: Event, state: State, value: float, at: int) -> None:
        self.remembered.end_wait(event, state)
        event.value = value
        updates = self._learn(event.user, event.paid, value)
        self.statistics.learned(at, event, value, updates)
        user = self.users.get(event.user)
        if user is not None:
            self.remembered.touch_user(event.user)
            user.learned += 1
            user.earned += value
        if self.trial is not None and event.arm and event.position > self.trial.start:
            n, s = 0, 0.0
            if user is not None and not event.alone:
                n, s = user.count_in_trial(self.trial.start, value)
            self.trial.arms[event.arm].add(value, n, s)

    def _learn(self, user: int, paid: Paid, value: float) -> int:
        if self.config.mode == "logging-only" or user not in self.users:
            return 0  # a user who was evicted while the event waited stays so
        return self.policies.learn(user, paid, value, self.config, self.position)

    def _see(self, number: int, at: int) -> User:
        """Return the user, now the last to be dropped; a new one may take the place of the first."""
        if number not in self.users:
            self.next_user = max(self.next_user, number + 1)
            while len(self.users) >= self.config.max_users:
                self._drop(next(iter(self.users)))
        return self.remembered.see(number, at)

    def _drop(self, number: int) -> None:
        self.remembered.drop_user(number)
        self.policies.drop(number)
        self.user_names.drop(number)
