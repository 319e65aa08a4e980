"""The service's contextual bandit: its policies, users and events. Its state is a function of the log.

Every change of state is a record, and `apply` is the only code that makes it. A running service writes what requests
plan into a draft, and applies it once the log has it, as it applies the records of other services and as recovery
does. Without a draft, what is planned is applied at once. Time and chance enter through records only: a wait ends
with a Tick, and a uniform choice is drawn from the event's id and a secret that the log holds.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Protocol, cast

import msgspec

from coterie.data.logs.interactions import SHARED
from coterie.data.logs.records import (
    Activate,
    ArmName,
    Befriend,
    Configure,
    Drained,
    Forget,
    Import,
    Kind,
    Observe,
    Rank,
    Record,
    Reset,
    Reward,
    ShownAction,
    Tick,
    decode,
    encode,
    request_of,
)
from coterie.data.logs.rules import Config
from coterie.errors import UnavailableError
from coterie.policies import Decision
from coterie.policies.cab import Engine
from coterie.service.core.budget import Spending, is_tight, with_budget
from coterie.service.core.caps import add_look, with_caps
from coterie.service.core.deciding import Asked, decide, read_candidates
from coterie.service.core.draft import Draft
from coterie.service.core.edges import check_friends
from coterie.service.core.events import Event, Outcome, State, deadline_of
from coterie.service.core.guardrails import Guards, check_known, value_of
from coterie.service.core.names import Names
from coterie.service.core.policies import Policies
from coterie.service.core.policy_config import check_config, same_model, takes_friends
from coterie.service.core.question import Question
from coterie.service.core.remembered import Remembered, User, event_of
from coterie.service.core.statistics import Statistics
from coterie.service.core.waits import DEFERRED, WAITING, Wait
from coterie.service.logs import log
from coterie.service.trial.assignment import (
    NAMES,
    alone,
    assign,
    challenger_of,
    compared,
    salt_of,
    shares,
)
from coterie.service.trial.lift import Sums, Trial

SECRET = 48  # bytes
PASSED_ON = (MemoryError, UnavailableError)  # not the same in every process that applies the record


class Log(Protocol):
    """Where decisions are found that are no longer in memory."""

    def decision(self, position: int) -> Rank | None:
        """Return the decision at a position, if the log still has it."""

    def locate(self, event: str) -> int | None:
        """Return where the decision of an event is."""


class Bandit:
    """Decides, learns and forgets: plain, synchronous, and without a clock."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.contract: dict[str, Any] = {}  # what Personalizer's configuration has and `config` has not
        self.secret = b""  # of all draws, so that nobody outside can tell what an event's id will draw
        self.policies = Policies(Config(), engine)
        self.challenger: Policies | None = None  # another model, which learns the same payoffs
        self.position = 0  # of the next record
        self.now = 0  # the time of the last record, milliseconds
        self.jumped = 0  # how far the time of day has jumped so far, milliseconds
        self.remembered = Remembered()
        self.events = self.remembered.events  # those in memory, oldest first
        self.log: Log | None = None  # without a log, open events stay in memory
        self.users = self.remembered.users  # unseen for longest first
        self.next_user = 0
        self.statistics = Statistics()
        self.trial: Trial | None = None  # what each arm earned, while there are several
        self.spending: Spending | None = None  # while there is a budget
        self.guards = Guards()  # named parts of rewards, and the bounds on them
        self.kept: dict[str, dict[str, bytes]] = {}  # where the parts of the last snapshot are; see snapshot
        self.user_names = Names()
        self.names, self.ids = self.user_names.numbers, self.user_names.ids  # name → number, number → name
        self.draft: Draft | None = None  # where records go that are not applied before the log has them
        self.outbox: list[bytes] = []  # applied without a draft, but not yet handed to a log
        self.scrub: list[int] = []  # forgotten on demand: their records are to be scrubbed
        # Given a change of policy, returns a bandit that learned the log so far with the new one.
        self.relearn: Callable[[Config], Bandit] | None = None
        self.tap: list[Record] | None = None  # new records are also put here, for bandits that catch up
        self.forgotten: set[int] = set()  # on demand; the log may still have their records for a moment
        self.fixed: Config | None = None  # when relearning: the model to learn with, whatever the log says
        self.lost = 0  # how many records of the log were lost, as far as it was read
        self.skipped = 0  # how often something could not be learned, since the start

    @property
    def config(self) -> Config:
        """The rules in force."""
        return self.policies.config

    @property
    def models(self) -> list[Policies]:
        """The policies that learn."""
        return [self.policies] if self.challenger is None else [self.policies, self.challenger]

    # Requests. Each plans records. They go into the draft, or are applied at once and left in the outbox.

    def configure(self, config: Config, at: int, contract: Mapping[str, Any] | None = None) -> None:
        """Decide and learn by other rules from here on; `contract` stays as it is unless given."""
        self.check(config)
        kept = self.contract if contract is None else dict(contract)
        secret = self.secret or new_secret()
        if self.position == 0 or (config, kept, secret) != (self.config, self.contract, self.secret):
            at = self._at(at)
            running = None if self.trial is None else self.trial.salt
            salt = salt_of(self.config, config, running, _derived(secret, f"{at}-{self.position}").hex())
            self._emit(Configure(at, config, kept, salt, secret))

    def check(self, config: Config, engine: Engine | None = None) -> None:
        """Raise if the loop cannot go on by these rules."""
        check_config(config, engine)
        check_known(config, self.guards.parts)

    def rank(
        self, question: Question, at: int, made: Rank | None = None, gone: int | None = None
    ) -> Rank | Event:
        """Decide, or keep the decision `made` before; for a retry, return the event of the logged decision.

        The caller checks that it is the same request. If that decision was at the position `gone`, which the log no
        longer has, it is made again.
        """
        known = self.events.get(question.event)
        if known is not None and known.position != gone:
            return known
        if made is None or self.must_wait(question):  # there may be more looks, or less may be left
            made = self.decide(question, self._at(at))  # which ends waits first
        return self.keep(question, made, at)

    def keep(self, question: Question, record: Rank, at: int) -> Rank:
        """Add a decision to the log, with the number that its user has there."""
        self._once(question.event)
        record = msgspec.structs.replace(record, at=self._at(at), user=self.number_of(question.user))
        self._emit(record, {record.user: question.user})
        return record

    def keep_all(self, decided: Sequence[tuple[Question, Rank]], at: int) -> list[Rank]:
        """Add decisions to the log, all or none."""
        for _, record in decided:
            encode(record)  # raises before anything has changed
        return [self.keep(question, record, at) for question, record in decided]

    def decide(self, question: Question, at: int) -> Rank:
        """Return a new decision, for `keep`; nothing changes."""
        at = max(at, self.now) if self.draft is None else self.draft.at
        asked = self._with_budget(self._with_caps(question, at), at)
        return self._decide(asked, question.digest(), at)[0]

    def what_if(self, question: Question, caps: bool = True) -> tuple[Rank, Decision]:
        """Return what `rank` could decide now and why; nothing is recorded. Without `caps`, no frequency cap holds.

        The draw is another one, because nobody may find out beforehand what an event's id will draw.
        """
        asked = self._with_budget(self._with_caps(question, self.now) if caps else question, self.now)
        return self._decide(asked, b"", self.now, secret=_derived(self.secret, "what-if"))

    def _decide(
        self,
        question: Question,
        digest: bytes,
        at: int,
        secret: bytes | None = None,
    ) -> tuple[Rank, Decision]:
        """Let the policy decide, or the challenger's for a user in its arm."""
        user, (arm, decider) = self.number_of(question.user), self._decider(question)
        for other in self.models:
            if other is not decider:  # it will learn from it, so it may refuse it
                read_candidates(question, other)
        secret = self.secret if secret is None else secret
        config = self.config
        if self.guards.shows_baseline():
            config = msgspec.structs.replace(config, mode="apprentice")
        asked = Asked(question, digest, at, user, arm, self.position)
        return decide(asked, config, decider, secret)

    def has_caps(self, question: Question) -> bool:
        """Return whether frequency caps hold for a question."""
        return bool(self.config.caps) and question.user != SHARED

    def must_wait(self, question: Question) -> bool:
        """Return whether a question has to be decided at the end of the log, not ahead: others may matter for it."""
        return self.has_caps(question) or self._is_tight(question)

    def _is_tight(self, question: Question) -> bool:
        """Return whether a budget is so nearly spent that decisions have to see each other's cost."""
        spending, budget = self.spending, self.config.budget
        if spending is None or budget is None:
            return False
        return is_tight(question, spending, self.now - self.jumped, budget)

    def _with_caps(self, question: Question, at: int) -> Question:
        """Return the question without the actions that reached a frequency cap."""
        caps = self.config.caps
        if not self.has_caps(question):
            return question
        number = self.number_of(question.user)
        if self.draft is not None:
            self.draft.check_looks(number)
            self.draft.fixes = True  # others have to know this look
        user = self.users.get(number)
        return question if user is None else with_caps(question, user.looks, at - self.jumped, caps)

    def _with_budget(self, question: Question, at: int) -> Question:
        """Return the question with what a budget says."""
        if self.spending is None or self.config.budget is None:
            return question
        planned = 0.0
        if self.draft is not None and self._is_tight(question):
            self.draft.fixes = True  # and others this cost
            planned = sum(record.cost for record in self.draft.decisions)
        return with_budget(question, self.spending, at - self.jumped, self.config.budget, planned)

    def _decider(self, question: Question) -> tuple[ArmName, Policies]:
        """Return the arm of a decision, and the policies that decide in it."""
        if self.trial is None or self.guards.shows_baseline():
            return "", self.policies
        arm = assign(self.config, question.user, request_of(question.event), self.trial.salt)
        if arm in self.guards.stopped():
            arm = ""
        other = self.challenger if arm == "challenger" else None
        return arm, other or self.policies

    def reward(
        self,
        event: str,
        value: float | None,
        at: int,
        name: str | None = None,
        parts: Mapping[str, float] | None = None,
        cost: float | None = None,
    ) -> Outcome:
        """Learn a reward, or say why it was not learned; of a draft, `apply` has the last word.

        Without a value, it is worth what the configuration says of its parts. `cost` is what the decision
        really cost.
        """
        named = dict(parts or {})
        worth = value_of(value, named, self.config, self.guards.parts)
        at = self._at(at)
        found = self.find(event)
        if found is None:
            return "unknown_event"
        self._once(event)
        outcome = self._outcome(found, name, at)
        applied: Outcome | None = self._emit(
            Reward(at, event, worth, outcome, found.position, found.user, name, cost, named)
        )
        return applied or outcome

    def _outcome(self, event: Event, name: str | None, at: int) -> Outcome:
        """Return what becomes of a reward, also if the Tick that ends its wait is still in the draft."""
        wait = self.remembered.waits.get(event.position) if event.open else None
        if wait is not None and wait.deadline <= at:
            return "duplicate" if event.state == "waiting" and event.counted else "late"
        return event.outcome(name)

    def activate(self, event: str, at: int) -> bool:
        """Say that a deferred decision was shown; returns whether the event is known."""
        at = self._at(at)
        found = self.find(event)
        if found is None:
            return False
        if found.state == "deferred":
            self._once(event)
            self._emit(Activate(at, event, found.position, found.user))
        return True

    def find(self, event: str) -> Event | None:
        """Return an event from memory, or else from the log."""
        found = self.events.get(event)
        if found is not None or self.log is None:
            return found
        position = self.log.locate(event)
        if position is None or position >= self.position:  # which is not applied yet
            return None
        record = self.decision(position)
        if record is None or record.event != event or record.user in self.forgotten:
            return None
        return event_of(record, position, self.remembered.waits.get(position))

    def forget(self, user: str, at: int) -> int | None:
        """Drop a user from the model at once; returns the number to scrub from the log, or None."""
        at = self._at(at)
        number = self.names.get(user)
        if number is not None:
            self._emit(Forget(at, number))
        return number

    def observe(self, user: str, action: ShownAction, value: float, at: int) -> None:
        """Learn a payoff that was not earned here."""
        number = self.number_of(user)
        self._emit(Observe(self._at(at), number, value, action), {number: user})

    def befriend(self, user: str, friends: Mapping[str, float], at: int) -> None:
        """Give a user these friends, with the weights of the edges, and no others."""
        check_friends(user, friends, self._befriending.config, self.friends_of)
        at, numbers = self._at(at), self._numbers_of([user, *friends])
        record = Befriend(
            at, numbers[user], tuple(map(numbers.__getitem__, friends)), tuple(friends.values())
        )
        self._emit(record, {number: name for name, number in numbers.items()})

    def friends_of(self, user: str) -> dict[str, float]:
        """Return a user's friends, with the weights of the edges."""
        found = self._befriending.friends_of(self.names.get(user, -1))
        return {self.ids[friend]: weight for friend, weight in found.items() if friend in self.ids}

    @property
    def _befriending(self) -> Policies:
        """The policies that use friends: the challenger's, if only that one does."""
        return next((one for one in self.models if takes_friends(one.config)), self.policies)

    def reset(self, at: int) -> None:
        """Empty the model."""
        self._emit(Reset(self._at(at)))

    def replace_model(self, users: Mapping[int, str], models: dict[Kind, tuple[int, bytes]], at: int) -> None:
        """Use the model of a file, which `model_file` has checked."""
        self._emit(Import(self._at(at), tuple(users), models), users)

    def tick(self, at: int) -> None:
        """End the waits that are over."""
        self._at(at)

    def jump(self, at: int, by: int) -> None:
        """Continue from another time of day; all waits keep their length."""
        self._emit(Tick(at, by))  # also backwards

    def drain(self) -> Drained:
        """Return the records, new names, gone and forgotten users since the last call, for the log."""
        out = Drained(self.outbox, *self.user_names.changes(), self.scrub)
        self.outbox, self.scrub = [], []
        return out

    def number_of(self, user: str) -> int:
        """Return a user's number; for a new user, the number that the next one gets."""
        number = self.names.get(user)
        if number is not None:
            return number
        return self.next_user if self.draft is None else self.draft.number_of(user, self.next_user)

    def _numbers_of(self, users: Sequence[str]) -> dict[str, int]:
        """Return the numbers of different users; new ones get the next numbers, one after the other."""
        free = new = self.number_of("")
        found: dict[str, int] = {}
        for user in users:
            number = self.number_of(user)
            found[user] = number if number < free else new
            new += number >= free
        return found

    def _at(self, at: int) -> int:
        """Return the time for the next record, after ending the waits that are over by then.

        All records of a draft have the same time.
        """
        at = max(at, self.now) if self.draft is None else self.draft.at
        ticked = self.draft is not None and self.draft.ticked
        if self.remembered.waits.next <= at and not ticked:
            self._emit(Tick(at))
        return at

    def _once(self, event: str) -> None:
        """Put off what is about an event that the draft is already about."""
        if self.draft is not None:
            self.draft.once(event)

    def _emit(self, record: Record, named: Mapping[int, str] | None = None) -> Any:
        """Add a record to the draft, or else apply it, and return what that gives; it may bring names of users.

        What cannot be encoded changes nothing.
        """
        encoded = encode(record)
        if self.draft is not None:
            new = {number: name for number, name in (named or {}).items() if name not in self.names}
            self.draft.add(record, encoded, new)
            return None
        for number, name in (named or {}).items():
            self.user_names.put(number, name)
        applied = self.apply(record)
        self.outbox.append(encoded)
        return applied

    # Records: the only code that changes state, the same in every running service and in a replay.

    def apply(self, record: Record) -> Outcome | None:
        """Change the state as one record says; returns what became of a reward."""
        outcome: Outcome | None = None
        if record.at < self.now and not (isinstance(record, Tick) and record.jump):
            record = msgspec.structs.replace(record, at=self.now)  # planned before what another service wrote
        self.now = record.at
        if isinstance(record, Rank):
            self._apply_rank(record)
        elif isinstance(record, Reward):
            outcome = self._apply_reward(record)
        elif isinstance(record, Tick):
            if record.lost:
                self.lost += 1
            if record.jump:
                self.remembered.waits.move(record.jump)
                self.jumped += record.jump
            for wait in self.remembered.waits.over(record.at):
                self._end(wait, record.at)
        elif isinstance(record, Activate):
            found = self._recall(record)
            if found is not None and found.state == "deferred":
                self.remembered.touch_event(found)
                found.state = "waiting"
                self.remembered.changed(found)
        elif isinstance(record, Forget):
            self._apply_forget(record)
        elif isinstance(record, Observe):
            user = self._see(record.user, record.at)
            user.learned += 1
            user.earned += record.value
            self._learn(record.user, record.action, record.value, f"the payoff of user {record.user}")
        elif isinstance(record, Befriend):
            self._apply_befriend(record)
        elif isinstance(record, Configure):
            self._apply_configure(record)
        elif isinstance(record, Import):
            for number in record.users:
                self._see(number, record.at)
            if self.fixed is None:  # a bandit that relearns has another model than the file
                with self._skipping("its model", self.policies):
                    self.policies.restore(record)
        else:
            for model in self.models:
                model.clear()
        self.position += 1
        if self.tap is not None:
            self.tap.append(record)
        return outcome

    def _apply_rank(self, record: Rank) -> None:
        user = self._see(record.user, record.at)
        user.decisions += 1
        if self.spending is not None and self.config.budget is not None:
            priced = record.shown != "baseline"
            costs = () if record.each_cost is None else record.each_cost.tolist()
            self.spending.add(record.cost, record.at - self.jumped, self.config.budget, priced, costs)
        if self.config.caps:
            user.looks = add_look(user.looks, record.action.id, record.at - self.jumped, self.config.caps)
        if record.event in self.events:  # decided again, because the log no longer has the first decision
            self.remembered.drop_event(self.events[record.event])
        for model in self.models:
            model.meet(record)
        deadline = deadline_of(record, self.config.wait)
        self.remembered.put_event(Event.of(record, self.position), deadline)
        self.statistics.decided(record)
        if self.remembered.size > self.config.max_event_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Let the oldest events leave memory, and only if that is not enough, end the oldest waits."""
        remembered, most = self.remembered, self.config.max_event_bytes
        while remembered.size > most and self.events:
            if self.log is None and next(iter(self.events.values())).open:
                return  # it could not be read again
            remembered.page_out()
        while remembered.size > most and remembered.remove_oldest(self.now):
            pass

    def _recall(self, record: Reward | Activate) -> Event | None:
        """Return the event that a record is about; None if it is closed, or its decision is not in the log."""
        event = self.remembered.at(record.decision)
        wait = None if event is not None else self.remembered.waits.get(record.decision)
        return event if wait is None else self._load(wait)

    def _load(self, wait: Wait) -> Event | None:
        """Return an event that is not in memory, as its decision and its wait say."""
        record = self.decision(wait.position)
        return None if record is None else event_of(record, wait.position, wait)

    def decision(self, position: int) -> Rank | None:
        """Return the decision at a position, if the log has it, or if it is about to be handed to the log."""
        first = self.position - len(self.outbox)
        if first <= position < self.position:
            found = decode(self.outbox[position - first])
            return found if isinstance(found, Rank) else None
        return None if self.log is None else self.log.decision(position)

    def locate(self, event: str) -> int | None:
        """Return where the decision of an event is in the log."""
        return None if self.log is None else self.log.locate(event)

    def _end(self, wait: Wait, at: int) -> None:
        """Learn what an event earned whose wait is over."""
        event = self.remembered.at(wait.position)
        if event is None and wait.state in (WAITING, DEFERRED):
            event = self._load(wait)
            if event is None:  # its decision was deleted from the log
                self.remembered.lose(at)
        if event is not None:
            self._close(event, at)

    def _apply_reward(self, record: Reward) -> Outcome:
        """Learn a reward, if it is in time and the first of its name, by the order of the log."""
        event = self._recall(record)
        if event is None:  # its wait is over, or the log no longer has its decision
            return cast(Outcome, record.outcome)
        outcome = event.outcome(record.name)
        if outcome != "applied":
            return outcome
        skipped = self.skipped
        self.remembered.add_reward(event, record.value, record.name)
        if record.cost is not None:
            self._correct_cost(event, record.cost, record.at)
        if self.config.aggregation == "earliest":
            self._settle(event, "rewarded", event.payoff("earliest"), record.at)
        if record.parts and self.fixed is None:  # else the bandit that decides counts them
            self._count_parts(record, event)
        return outcome if self.skipped == skipped else "not_learned"

    def _correct_cost(self, event: Event, cost: float, at: int) -> None:
        """Count what a decision really cost, if it was made under the present budget."""
        spending, budget = self.spending, self.config.budget
        if spending is not None and budget is not None and event.at >= spending.since:
            spending.correct(cost - event.cost, at - self.jumped, budget)
        event.cost = cost

    def _count_parts(self, record: Reward, event: Event) -> None:
        """Add the named parts of a reward, which may break guardrails."""
        self.remembered.touch_user(event.user)
        user = self.users.get(event.user)
        start = None if self.trial is None else self.trial.start
        for text in self.guards.add(record.parts, event, user, start, record.at):
            log.warning(f"log record {self.position}: {text}")

    def _apply_forget(self, record: Forget) -> None:
        self.remembered.drop_events_of(record.user)
        self.forgotten.add(record.user)
        self.scrub.append(record.user)
        if record.user in self.users:
            self._drop(record.user)

    def _apply_befriend(self, record: Befriend) -> None:
        self._see(record.user, record.at)  # first, so that no new friend takes this user's place
        for number in record.friends:
            if number not in self.users:
                self._see(number, record.at)
        pairs = zip(record.friends, record.weights, strict=True)
        friends = {number: weight for number, weight in pairs if number in self.users}
        for model in self.models:
            with self._skipping(f"the friends of user {record.user}", model):
                model.befriend(record.user, friends)

    def _apply_configure(self, record: Configure) -> None:
        old, new = self.config, record.config
        if self.fixed is not None:
            new = alone(same_model(new, self.fixed))
        self.policies.config, self.contract, self.secret = new, record.contract, record.secret
        if new.budget is None:
            self.spending = None
        elif self.spending is None or new.budget != old.budget:
            price = 0.0 if self.spending is None else self.spending.price
            self.spending = Spending(record.at - self.jumped, price=price)
        trial = self.trial
        self._begin_trial(old, new, record)
        self.guards.begin(old, new, self.trial is not trial, self.position)
        if same_model(old, new) != old:
            self.policies = self._learned(new)

    def _begin_trial(self, old: Config, new: Config, record: Configure) -> None:
        """Start, continue or end the comparison of arms that the new rules ask for."""
        wanted = challenger_of(new)
        if wanted is None:
            self.challenger = None
        elif self.challenger is None or same_model(self.challenger.config, wanted) != self.challenger.config:
            self.challenger = self._learned(wanted)
        else:
            self.challenger.config = wanted
        if not any(shares(new)):
            self.trial = None
        elif self.trial is None or compared(old) != compared(new):
            self.trial = Trial(self.position, record.at, {name: Sums() for name in NAMES}, record.salt)

    def _learned(self, config: Config) -> Policies:
        """Return policies that learned the log so far, or empty ones if there is no log."""
        if self.relearn is not None:
            learned = self.relearn(config).policies
            learned.config = config
            return learned
        return Policies(config, self.policies.engine)

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
        self.remembered.changed(event)
        updates = self._learn(event.user, event.action, value, f"the payoff of event {event.id!r}")
        self.statistics.learned(at, event, value, updates)
        if self.spending is not None:
            self.spending.learn(value)
        user = self.users.get(event.user)
        if user is not None:
            self.remembered.touch_user(event.user)
            user.learned += 1
            user.earned += value
        if (
            self.trial is not None
            and event.arm
            and event.position > self.trial.start
            and not self.guards.stopped()
        ):
            n, s = 0, 0.0
            if user is not None and not event.alone:
                n, s = user.count_in_trial(self.trial.start, value)
            self.trial.arms[event.arm].add(value, n, s)

    def _learn(self, user: int, action: ShownAction, value: float, what: str) -> int:
        """Learn a payoff, and return how many users' models changed of the policies in force."""
        updates = 0
        if self.config.mode == "logging-only" or user not in self.users:
            return 0  # a user who was evicted while the event waited stays so
        for model in self.models:
            with self._skipping(what, model):
                changed = model.learn(user, action, value)
                updates += changed if model is self.policies else 0
        return updates

    @contextmanager
    def _skipping(self, what: str, model: Policies) -> Iterator[None]:
        """Pass over what policies cannot learn, as a replay does: it must not end the service, nor its next start."""
        try:
            yield
        except PASSED_ON:
            raise
        except Exception as error:
            self.skipped += model is self.policies
            log.error(f"log record {self.position}: {what} was not learned: {error}")

    def _see(self, number: int, at: int) -> User:
        """Return the user, now the last to be dropped; a new one may take the place of the first."""
        if number not in self.users:
            self.next_user = max(self.next_user, number + 1)
            while len(self.users) >= self.config.max_users:
                self._drop(next(iter(self.users)))
        return self.remembered.see(number, at)

    def _drop(self, number: int) -> None:
        self.remembered.drop_user(number)
        for model in self.models:
            model.drop(number)
        self.user_names.drop(number)


def models_to_learn(bandit: Bandit, config: Config) -> list[Config]:
    """Return the models that have to learn the log before these rules can be in force."""
    found = [] if same_model(bandit.config, config) == bandit.config else [alone(config)]
    wanted, running = challenger_of(config), bandit.challenger
    if wanted is not None and (running is None or same_model(running.config, wanted) != running.config):
        found.append(wanted)
    return found


def new_secret() -> bytes:
    """Return what a new loop draws with."""
    return secrets.token_bytes(SECRET)


def _derived(secret: bytes, name: str) -> bytes:
    """Return another secret, of which nobody can tell the first."""
    return blake2b(name.encode(), digest_size=24, key=secret).digest()
