"""The engine: one owner of the policy and of the events that wait. Its state is a function of the log.

Whatever changes state is a record, and `apply` is the only way in: the live service plans a record, applies it
and hands it to the log; recovery applies the same records again. Time and chance enter through records
only: a wait ends with a Tick, and a uniform choice is drawn from the event's id.
"""

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from safetensors.numpy import load

from coterie.errors import CoterieError, ParameterError
from coterie.models.encoded import Encoded
from coterie.models.features import cross, hash_actions
from coterie.models.files import unpack_ids
from coterie.models.hierarchy.effects import pick
from coterie.policies import POLICIES, Decision, Hierarchical, Policy, SparseHierarchical
from coterie.policies.cab import Engine as Shards
from coterie.service.core.encoding import encode_action, encode_id, encode_question
from coterie.service.core.events import Event, Outcome
from coterie.service.core.reasons import LARGEST, pack_parts, pack_reasons
from coterie.service.core.records import (
    Activate,
    Configure,
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
    check_shares,
    shares,
)
from coterie.service.trial.lift import Sums, Trial

Features = Sequence[Mapping[str, Any]]
Kind = Literal["items", "vectors", "model"]  # over ids, over vectors, and one model of all
OURS = {  # what a policy's constructor takes and the service decides
    "engine": "the service keeps it; start with `coterie serve --engine …` for shards",
    "n_features": "it is the service's `dimensions`",
    "one_hot": "actions with features and without have a model each",
    "rng": "the service draws from event ids, so that a replay decides alike",
}

# In crosses to be weighed, of which the compiled loop takes some ten a microsecond.
LONG = 20_000  # more than this is not done in the event loop
DECIDING = 2_000  # what a decision costs, whatever is weighed
LEARNING = 3  # what learning a cross costs
SETTLING = 300  # what ending a wait costs, whatever is learned


class Action(Struct, frozen=True):
    """One thing that could be shown."""

    id: str
    features: Features | None = None


class Question(Struct, frozen=True):
    """What is to be decided. Ids and sizes were checked at the edge."""

    event: str
    user: str
    actions: Sequence[Action]
    context: Features = ()
    excluded: frozenset[str] = frozenset()
    deferred: bool = False
    baseline: str | None = None  # the first action that is not excluded, unless named
    parent: str | None = None
    slot: str | None = None
    work: int = 0  # how many crosses its features make, about

    def digest(self) -> bytes:
        """Return what tells a retry from another request of the same name."""
        said = (
            self.user,
            [action.id for action in self.actions],
            [action.features for action in self.actions],
            self.context,
            sorted(self.excluded),
            self.deferred,
            self.baseline,
            self.slot,
        )
        return blake2b(_canonical.encode(said), digest_size=16).digest()


_canonical = msgspec.json.Encoder(order="deterministic")  # MessagePack has no integers beyond 64 bits
_plain = msgspec.json.Encoder()


class Plan(NamedTuple):
    """What the policy is asked, of a question."""

    ids: list[str]
    open_to: Sequence[int]  # positions of the actions that are not excluded
    kind: Kind
    contexts: Any


class Paid(NamedTuple):
    """What a payoff is learned for: an item, or a vector, or for one model of all an action by hashes."""

    item: str | None = None
    x: bytes | None = None
    hashed: bytes | None = None


class Drained(NamedTuple):
    """What goes to the log together."""

    records: list[bytes]
    named: dict[int, str]  # new users
    gone: list[int]  # users whose names go
    scrub: list[int]  # users whose earlier records are to be scrubbed


Answer = Rank | Event | CoterieError  # to a question: a decision, one made before, or what is wrong


class Engine:
    """Decides, learns and forgets; plain, synchronous and without a clock."""

    def __init__(self, shards: Shards | None = None) -> None:
        self.shards = shards  # where users' models are kept, if not in this process
        self.refuse_partial = False  # rather than decide with a part of the users
        self.config = Config()
        self.contract: dict[str, Any] = {}  # of Personalizer's configuration, what has no place in `config`
        self.items: Policy | None = None  # over ids of actions without features
        self.vectors: Policy | None = None  # over hashed features
        self.model: Policy | None = None  # or one for ids, features, contexts and users together
        self.position = 0  # of the next record
        self.now = 0  # the time of the last record, milliseconds
        self.remembered = Remembered()
        self.events = self.remembered.events  # oldest first
        self.users = self.remembered.users  # unseen for longest first
        self.known_items: dict[str, None] = {}
        self.next_user = 0
        self.statistics = Statistics()
        self.trial: Trial | None = (
            None  # what the arms earned, while users are held back or given to a challenger
        )
        # The challenger: an engine with another model that applies the same records, so it learns from all payoffs.
        self.rival: Engine | None = None
        self.kept: dict[str, dict[str, bytes]] = {}  # where the parts of the last snapshot are; see snapshot
        self.names: dict[str, int] = {}  # beside the log: who has which number …
        self.ids: dict[int, str] = {}  # … and the other way round; `_name`, `_drop` and `know` write both
        self.outbox: list[bytes] = []  # applied, on the way to the log
        self.named: dict[int, str] = {}
        self.gone: list[int] = []
        self.scrub: list[int] = []  # forgotten on demand: their records are to be scrubbed
        # Given a change of policy, returns an engine that learned the log so far with the new one.
        self.relearn: Callable[[Config], Engine] | None = None
        self.tap: list[Record] | None = None  # what is emitted is also put here, for one who catches up
        self.fixed: Config | None = None  # learn with this model, whatever the log says: for relearning
        self.partial = False  # whether the log begins later: rewards may be for decisions that are gone
        # Told what is learned: user, what for, and payoff.
        self.on_learn: Callable[[int, Paid, float], None] | None = None
        self._deadlines: list[tuple[int, int, str]] = []
        self._open = 0

    # What is asked of it. Each plans records, applies them, and leaves them in the outbox.

    def configure(self, config: Config, at: int, contract: Mapping[str, Any] | None = None) -> None:
        """Decide and learn by other rules from here on; `contract` stays as it is unless given."""
        check_config(config)
        kept = self.contract if contract is None else dict(contract)
        if self.position == 0 or (config, kept) != (self.config, self.contract):
            self._emit(Configure(self._at(at), config, kept))

    def rank(self, question: Question, at: int, ahead: tuple[Plan, Decision] | None = None) -> Rank | Event:
        """Decide, or take over what was decided `ahead`; a retry gets the event back, whose decision is logged."""
        at = self._at(at)
        digest = question.digest()
        known = self.events.get(question.event)
        if known is not None:
            self.check_retry(known, digest)
            return known
        record, _ = self._decide(question, digest, at, ahead)
        self.keep(question, record)
        return record

    def keep(self, question: Question, record: Rank) -> None:
        """Take a decision into the state and the log."""
        self._name(record.user, question.user)
        self._emit(record)

    def decide(self, question: Question, at: int) -> Rank:
        """Return a new decision, for `keep`; nothing is changed but the time."""
        return self._decide(question, question.digest(), self._at(at))[0]

    def check_retry(self, known: Event, digest: bytes) -> None:
        """Raise if an event was decided for another request than that with this digest."""
        if known.digest != digest:
            raise Problem(
                409,
                "event_exists",
                f"event {known.id!r} was decided for another request; use a new event id, or send "
                "the same body again to get the same answer",
            )

    def rank_many(self, questions: Sequence[Question], at: int) -> list[Answer]:
        """Do what `rank` does for each, asking the models once; what is wrong with one is returned in its place."""
        at = self._at(at)
        plans: list[Plan | None] = []
        for question in questions:
            try:
                plans.append(self._plan(question))
            except CoterieError:
                plans.append(None)  # `rank` finds it again, and says so
        ahead: list[tuple[Plan, Decision] | None] = [None] * len(questions)
        kinds: tuple[Kind, ...] = ("items", "vectors")  # one model of all cannot be kept in shards
        for kind in kinds:
            those = [(k, plan) for k, plan in enumerate(plans) if plan is not None and plan.kind == kind]
            users = [self._number(questions[k].user) for k, _ in those]
            policy = self._policy(kind) if those else None
            if isinstance(policy, Hierarchical):
                policy.prepare(users)  # it draws for each event apart
                continue
            contexts = [plan.contexts for _, plan in those]
            decisions = policy.decide_many(users, contexts) if policy is not None else []
            for (k, plan), made in zip(those, decisions, strict=True):
                ahead[k] = plan, made
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

    def reward(self, event: str, value: float, at: int, name: str | None = None) -> Outcome:
        """Learn a reward, or say why it was not learned."""
        at = self._at(at)
        if event not in self.events:
            return "unknown_event"
        outcome = self._outcome(self.events[event], name)
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
        """Learn a payoff from elsewhere."""
        number = self._number(user)
        at = self._at(at)
        self._name(number, user)
        self._emit(Observe(at, number, value, item, x, hashed))

    def reset(self, at: int) -> None:
        """Empty the model."""
        self._emit(Reset(self._at(at)))

    def replace_model(
        self,
        users: Mapping[int, str],
        items: tuple[int, bytes] | None,
        vectors: tuple[int, bytes] | None,
        model: tuple[int, bytes] | None,
        at: int,
    ) -> None:
        """Take over a model from a file, checked before; see model_file."""
        at = self._at(at)
        for number, name in users.items():
            self._name(number, name)
        self._emit(Import(at, tuple(users), items, vectors, model))

    def tick(self, at: int) -> None:
        """End the waits that are over."""
        self._at(at)

    def jump(self, at: int, by: int) -> None:
        """Go on from another time of day; nobody waits longer or shorter for it."""
        self._emit(Tick(at, by))

    def know(self, users: Mapping[int, str]) -> None:
        """Take over the table of names, before a replay."""
        self.ids = dict(users)
        self.names = {name: number for number, name in users.items()}

    def know_more(self, users: Mapping[int, str]) -> None:
        """Take over names of users that came since."""
        self.ids |= users
        self.names |= {name: number for number, name in users.items()}

    def take_events(self, events: Sequence[Event]) -> None:
        """Take over the events of a snapshot."""
        self.remembered.take_events(events)
        self._deadlines = [(event.deadline, event.position, event.id) for event in events if event.open]
        heapq.heapify(self._deadlines)
        self._open = len(self._deadlines)

    def drain(self) -> Drained:
        """Return the records, new names, gone and forgotten users since the last call, for the log."""
        out = Drained(self.outbox, self.named, self.gone, self.scrub)
        self.outbox, self.named, self.gone, self.scrub = [], {}, [], []
        return out

    def long_to_decide(self, work: int, choices: int) -> bool:
        """Return whether a decision may take longer than the event loop can wait."""
        if self.rival is not None and self.rival.long_to_decide(work, choices):
            return True
        if work > LONG or (not self.takes_names and len(self.users) * choices > LONG):
            return True
        if len(self.events) < self.config.max_events:
            return False
        return self._work(next(iter(self.events.values()))) > LONG  # the oldest goes, and is learned

    def long_to_learn(self, event: str) -> bool:
        """Return whether learning an event's reward may take longer than the event loop can wait."""
        found = self.events.get(event)
        return found is not None and self._work(found) > LONG

    def long_to_end(self, at: int) -> bool:
        """Return whether ending the waits that are over may take longer than the event loop can wait."""
        waits, work, places = self._deadlines, 0, [0]
        while places and work <= LONG:  # down the heap, as far as it is over
            k = places.pop()
            if k < len(waits) and waits[k][0] <= at:
                event = self.events.get(waits[k][2])
                work += SETTLING if event is None else self._work(event)
                places += (2 * k + 1, 2 * k + 2)
        return work > LONG

    def _work(self, event: Event) -> int:
        """Return what learning an event takes, about."""
        twin = None if self.rival is None else self.rival.events.get(event.id)
        also = 0 if self.rival is None or twin is None else self.rival._work(twin)
        if not self.takes_names:
            return also + SETTLING + LEARNING * len(self.users)
        n = len(event.hashed or b"") // 16
        around = int.from_bytes((event.hashed or b"")[:4], "little")
        return also + SETTLING + LEARNING * (2 + around) * (n - around)

    @property
    def learned(self) -> int:
        """How many payoffs the model has learned."""
        return sum(policy.learned for policy in self.policies().values())

    @property
    def waiting(self) -> int:
        """How many events may still get a reward."""
        return self._open

    # Planning: reads the state, changes nothing.

    def _at(self, at: int) -> int:
        """Return the time for the next record, after ending the waits that are over by then."""
        at = max(at, self.now)
        if self._deadlines and self._deadlines[0][0] <= at:
            self._emit(Tick(at))
        return at

    def _name(self, number: int, user: str) -> None:
        if user not in self.names:
            self.names[user], self.ids[number] = number, user
            self.named[number] = user

    def _plan(self, question: Question) -> Plan:
        """Return what the policy is asked."""
        actions, excluded = question.actions, question.excluded
        ids = [action.id for action in actions]
        open_to = [k for k, name in enumerate(ids) if name not in excluded] if excluded else range(len(ids))
        if not open_to:
            raise Problem(422, "no_action_left", "every action is excluded; leave at least one to choose")
        if self.takes_names:
            shown_ids = [ids[k] for k in open_to] if excluded else ids
            features = [actions[k].features for k in open_to]
            return Plan(ids, open_to, "model", encode_question(shown_ids, features, question.context))
        featured = any(action.features for action in actions)
        contexts: Any
        if featured:
            shown = [(ids[k], actions[k].features or ()) for k in open_to]
            contexts = hash_actions(shown, question.context, self.config.dimensions)
        else:
            contexts = [ids[k] for k in open_to] if excluded else ids
            self.check_items(contexts)
        return Plan(ids, open_to, "vectors" if featured else "items", contexts)

    def _number(self, user: str) -> int:
        """Return a user's number: for a stranger the one that the next newcomer gets."""
        return self.names.get(user, self.next_user)

    def _decide(
        self, question: Question, digest: bytes, at: int, ahead: tuple[Plan, Decision] | None = None
    ) -> tuple[Rank, Decision]:
        user, arm = self._number(question.user), OUTSIDE
        if self.trial is not None:
            arm = assign(self.config, question.user, question.parent or question.event)
        if self.rival is None:
            return self._decide_in(arm, question, digest, at, user, ahead)
        sides = (self.rival, self) if arm.name == "challenger" else (self, self.rival)
        sides[1]._plan(question)  # it learns of the decision too, so it may refuse it
        return sides[0]._decide_in(arm, question, digest, at, user)

    def _decide_in(
        self,
        arm: Arm,
        question: Question,
        digest: bytes,
        at: int,
        user: int,
        ahead: tuple[Plan, Decision] | None = None,
    ) -> tuple[Rank, Decision]:
        config, excluded = self.config, question.excluded
        plan, decision = ahead or (self._plan(question), None)
        ids, open_to, kind, contexts = plan
        policy = self._policy(kind)
        chance, which = draw(question.event)
        if isinstance(policy, SparseHierarchical):
            decision = policy.score(user, contexts, contexts, floor=config.exploration)
        elif policy.rng is not None:
            policy.rng = np.random.default_rng(int(which * 2**53))
        if decision is None:
            decision = policy.decide(user, contexts)
        if decision.seen is not None and self.refuse_partial:
            raise Problem(
                503,
                "shards_down",
                f"{decision.seen.of - decision.seen.shards} of {decision.seen.of} shards are being rebuilt; "
                "try again in a moment",
                1,
            )
        ranking = decision.ranking
        best = ranking[0]
        baseline = 0
        if question.baseline is not None:
            baseline = next((i for i, k in enumerate(open_to) if ids[k] == question.baseline), 0)
        exploration = 1.0 if policy.name == "random" else config.exploration
        choice, shown_by, chances = best, "", None
        if config.mode != "online" or arm.name == "holdback":
            choice, shown_by, exploration = baseline, "baseline", 0.0
        elif decision.probability is not None and config.explore == "gaps" and exploration > 0:
            chances = decision.probability
            choice = pick(chances, chance)
            shown_by = "" if choice == best else "explored"
        elif chance < exploration:
            choice, shown_by = int(which * len(open_to)), "explored"
        if choice != best:
            ranking.remove(choice)
            ranking.insert(0, choice)
        left = [k for k in range(len(ids)) if ids[k] in excluded] if excluded else []
        if chances is not None:
            chosen_by_chance = float(chances[choice])
        else:
            chosen_by_chance = probability(choice == best, exploration, len(open_to))
        told = question.context or any(action.features for action in question.actions)
        hashed = None
        if kind != "model" and told:  # for the policy that may come after this one
            chosen = question.actions[open_to[choice]]
            hashed = encode_action(chosen.id, chosen.features, question.context)
        parts = None
        if config.record_reasons and isinstance(policy, SparseHierarchical):
            parts = pack_parts(policy.contributions(user, contexts, choice, LARGEST))
        record = Rank(
            at=at,
            event=question.event,
            user=user,
            actions=tuple(ids),
            order=(*[open_to[k] for k in ranking], *left) if excluded else tuple(ranking),
            choice=open_to[choice],
            best=open_to[best],
            baseline=open_to[baseline],
            probability=1.0 if shown_by == "baseline" else chosen_by_chance,
            exploration=exploration,
            digest=digest,
            excluded=tuple(left),
            deferred=question.deferred,
            x=contexts[choice].tobytes() if kind == "vectors" else None,
            reasons=pack_reasons(decision) if config.record_reasons else None,
            features=_features(question) if told else None,
            parent=question.parent,
            slot=question.slot,
            shown=shown_by,
            seen=decision.seen,
            hashed=contexts[choice].to_bytes() if kind == "model" else hashed,
            chances=None if chances is None else chances.tobytes(),
            parts=parts,
            arm=arm.name,
            alone=arm.alone,
        )
        return record, decision

    def check_items(self, ids: Collection[str]) -> None:
        """Raise if there would be more items than `max_items`, each id given once.

        None goes to make room: what users learned of an item is shared among them, so no model forgets one alone.
        """
        known = self.known_items
        if all(map(known.__contains__, ids)):
            return
        new = sum(name not in known for name in ids)
        if len(known) + new > self.config.max_items:
            raise Problem(
                422,
                "too_many_items",
                f"the request names {new} new items, but {len(known)} of at most {self.config.max_items} are "
                "known; raise max-items, empty the model, or give actions features, which need no row an item",
            )

    def _outcome(self, event: Event, name: str | None) -> Outcome:
        if event.state == "deferred":
            return "not_activated"
        if event.state in ("expired", "discarded"):
            return "late"
        if event.state == "rewarded" or (name is not None and name in event.rewards):
            return "duplicate"
        return "applied"

    # Applying: the only code that changes state, the same live and in a replay.

    def apply(self, record: Record) -> None:
        """Take one record into the state."""
        self.now = record.at
        if self.partial and isinstance(record, Reward | Activate) and record.event not in self.events:
            pass  # its decision is gone, and with it what it was for
        elif isinstance(record, Rank):
            self._apply_rank(record)
        elif isinstance(record, Reward):
            self._apply_reward(record)
        elif isinstance(record, Tick):
            self._apply_tick(record)
        elif isinstance(record, Activate):
            event = self.events.get(record.event)
            if event is not None:  # a challenger may not know it: its rank was no longer in the log
                self.remembered.touch_event(event)
                event.state = "waiting"
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
            self._apply_import(record)
        else:
            self.items = self.vectors = self.model = None
            self.known_items = {}
        self.position += 1
        if self.rival is not None:
            self.rival.apply(record)
            self.rival.drain()

    def _emit(self, record: Record) -> None:
        self.apply(record)
        self.outbox.append(encode(record))
        if self.tap is not None:
            self.tap.append(record)

    def _apply_rank(self, record: Rank) -> None:
        user = self._see(record.user, record.at)
        user.decisions += 1
        paid = self._paid(record)
        if paid.item is not None and not all(map(self.known_items.__contains__, record.actions)):
            for k, name in enumerate(record.actions):
                if k not in record.excluded:
                    self.known_items.setdefault(name)
        event = Event(
            id=record.event,
            position=self.position,
            user=record.user,
            item=paid.item,
            x=paid.x,
            at=record.at,
            deadline=record.at + math.ceil(self.config.wait * 1000),
            state="deferred" if record.deferred else "waiting",
            digest=record.digest,
            probability=record.probability,
            choices=len(record.actions) - len(record.excluded),
            baseline=record.choice == record.baseline,
            parent=record.parent,
            slot=record.slot,
            hashed=paid.hashed,
            arm=record.arm,
            alone=record.alone,
            agrees=record.best == record.baseline,
        )
        self.remembered.put_event(event)
        self._open += 1
        heapq.heappush(self._deadlines, (event.deadline, event.position, event.id))
        self.statistics.decided(record)
        while len(self.events) > self.config.max_events:
            oldest = next(iter(self.events.values()))
            self._close(oldest, record.at)
            self.remembered.drop_event(oldest)

    def _paid(self, record: Rank) -> Paid:
        """Return what the reward of a decision will be learned for, by the policy that is to learn it.

        A decision of another policy, or with other dimensions, is read from its hashes, which stay when a user is
        scrubbed from the log; in logs of earlier versions, from its features as they were sent.
        """
        item = record.actions[record.choice]
        if self.takes_names:
            if record.hashed is not None:
                return Paid(hashed=record.hashed)
            context, features = sent_features(record)
            return Paid(hashed=encode_action(item, features[record.choice], context))
        if record.x is None and record.hashed is None:
            return Paid(item)
        if record.x is not None and len(record.x) == 8 * self.config.dimensions:
            return Paid(x=record.x)
        if record.hashed is not None:
            hashed = Encoded.from_bytes(record.hashed).hashed
            if record.x is None and len(hashed.features) == 1:
                return Paid(item)  # it had no features
            vector = cross(
                hashed.context, hashed.context_values, hashed.features, hashed.values, self.config.dimensions
            )
            return Paid(x=vector.tobytes())
        if record.features is None:
            return Paid(x=record.x)
        context, features = sent_features(record)
        if not any(features):
            return Paid(item)
        action = (item, features[record.choice] or ())
        return Paid(x=bytes(hash_actions([action], context, self.config.dimensions)[0].tobytes()))

    def _apply_reward(self, record: Reward) -> None:
        if record.outcome != "applied":
            return
        event = self.events.get(record.event)
        if event is None:
            return  # see Activate
        self.remembered.touch_event(event)
        event.value += record.value
        event.counted += 1
        if record.name is not None:
            event.rewards = (*event.rewards, record.name)
        if self.config.aggregation == "earliest":
            self._settle(event, "rewarded", event.value, record.at)

    def _apply_tick(self, record: Tick) -> None:
        if record.jump:
            for waiting in self.events.values():
                if waiting.open:
                    self.remembered.touch_event(waiting)
                    waiting.deadline += record.jump
            # All move alike, so the heap stays one.
            self._deadlines = [(end + record.jump, place, name) for end, place, name in self._deadlines]
        while self._deadlines and self._deadlines[0][0] <= record.at:
            _, position, name = heapq.heappop(self._deadlines)
            event = self.events.get(name)
            if event is not None and event.position == position:
                self._close(event, record.at)

    def _apply_forget(self, record: Forget) -> None:
        for event in [event for event in self.events.values() if event.user == record.user]:
            self._open -= event.open
            self.remembered.drop_event(event)
        self.scrub.append(record.user)
        if record.user in self.users:
            self._drop(record.user)

    def _apply_configure(self, record: Configure) -> None:
        old, new = self.config, record.config
        if self.fixed is not None:
            new = alone(same_model(new, self.fixed))
        self.config, self.contract = new, record.contract
        self._begin_trial(old, new, record.at)
        if same_model(old, new) == old:
            return
        if self.relearn is None:
            self.items = self.vectors = self.model = None
            return
        other = self.relearn(new)
        self.items, self.vectors, self.model = other.items, other.vectors, other.model
        self.known_items = other.known_items
        self.take_events(list(other.events.values()))

    def _begin_trial(self, old: Config, new: Config, at: int) -> None:
        """Compare from here on, if anything is to be compared and is not already."""
        wanted = challenger_of(new)
        if wanted is None:
            self.rival = None
        elif self.rival is None or same_model(self.rival.config, wanted) != self.rival.config:
            self.rival = self._new_rival(wanted)
        if not any(shares(new)):
            self.trial = None
        elif self.trial is None or _compared(old) != _compared(new):
            self.trial = Trial(self.position, at, {name: Sums() for name in NAMES})

    def _new_rival(self, config: Config) -> "Engine":
        """Return an engine that learned the log so far with another model, or an empty one if there is no log."""
        if self.relearn is not None:
            return self.relearn(config)
        made = Engine()
        made.position, made.now = self.position, self.now
        made.fixed = made.config = config
        return made

    def _apply_import(self, record: Import) -> None:
        for number in record.users:
            self._see(number, record.at)
        if self.fixed is not None:
            return  # relearning with another model, for which the file's is nothing
        self.items = restore_policy(record.items, self.config, "items", self.shards)
        self.vectors = restore_policy(record.vectors, self.config, "vectors", self.shards)
        self.model = restore_policy(record.model, self.config, "model", self.shards)
        learned = {} if self.items is None else self.items.tensors()
        self.known_items = dict.fromkeys(map(str, unpack_ids(learned, "items") if "items" in learned else ()))

    def _close(self, event: Event, at: int) -> None:
        """End an event's wait: learn the sum, or the default; a decision never shown teaches nothing."""
        self.remembered.touch_event(event)
        if event.state == "deferred":
            event.state = "discarded"
            self._open -= 1
        elif event.state == "waiting":
            if event.counted:
                self._settle(event, "rewarded", min(1.0, max(-1.0, event.value)), at)
            else:
                self._settle(event, "expired", self.config.default_reward, at)

    def _settle(self, event: Event, state: Any, value: float, at: int) -> None:
        event.state, event.value = state, value
        self._open -= 1
        updates = self._learn(event.user, Paid(event.item, event.x, event.hashed), value)
        self.statistics.learned(at, event, value, updates)
        user = self.users.get(event.user)
        if self.trial is not None and event.arm and event.position > self.trial.start:
            self._count_in_trial(self.trial, event, user, value)
        if user is not None:
            self.remembered.touch_user(event.user)
            user.learned += 1
            user.earned += value

    def _count_in_trial(self, trial: Trial, event: Event, user: User | None, value: float) -> None:
        sums = trial.arms[event.arm]
        if event.alone or user is None:
            sums.add(value, 0, 0.0)
            return
        self.remembered.touch_user(event.user)
        if user.trial != trial.start + 1:
            user.trial, user.tried, user.gained = trial.start + 1, 0, 0.0
        sums.add(value, user.tried, user.gained)
        user.tried += 1
        user.gained += value

    def _learn(self, user: int, paid: Paid, value: float) -> int:
        if self.config.mode == "logging-only":
            return 0
        if user not in self.users:
            return 0  # evicted while the event waited: learning would bring the user back
        if self.takes_names:
            return self._learn_hashed(user, paid, value)
        if paid.hashed is not None:
            return 0  # of a policy that is no longer in force, and there was no log to read it anew
        item, x = paid.item, paid.x
        policy = self._policy("items" if x is None else "vectors")
        if policy.rng is not None:
            policy.rng = np.random.default_rng(self.position)
        if x is not None and len(x) != 8 * self.config.dimensions:
            return 0  # scrubbed of its features, so it cannot be hashed into other dimensions
        if self.on_learn is not None:
            self.on_learn(user, paid, value)
        if x is None:
            assert item is not None
            self.known_items.setdefault(item)
            return policy.learn(user, item, value)
        return policy.learn(user, np.frombuffer(x), value)

    def _learn_hashed(self, user: int, paid: Paid, value: float) -> int:
        """Learn with one model of all; a vector alone does not say which features it was made of."""
        hashed = paid.hashed
        if hashed is None:
            if paid.item is None:
                return 0
            hashed = encode_id(paid.item)
        if self.on_learn is not None:
            self.on_learn(user, Paid(hashed=hashed), value)
        return self._policy("model").learn(user, Encoded.from_bytes(hashed), value)

    def _see(self, number: int, at: int) -> User:
        """Return the user, moved to the end of the queue of those who may go."""
        if number not in self.users:
            self.next_user = max(self.next_user, number + 1)
            while len(self.users) >= self.config.max_users:
                self._drop(next(iter(self.users)))
        return self.remembered.see(number, at)

    def _drop(self, number: int) -> None:
        self.remembered.drop_user(number)
        self.gone.append(number)
        for policy in self.policies().values():
            _drop_if_known(policy, number)
        self.named.pop(number, None)
        name = self.ids.pop(number, None)
        if name is not None:
            del self.names[name]

    @property
    def takes_names(self) -> bool:
        """Whether one model learns ids, features, contexts and users together."""
        return takes_names(self.config)

    def policies(self) -> dict[Kind, Policy]:
        """Return the policies that there are."""
        every: dict[Kind, Policy | None] = {"items": self.items, "vectors": self.vectors, "model": self.model}
        return {kind: policy for kind, policy in every.items() if policy is not None}

    def _policy(self, kind: Kind) -> Policy:
        policy = self.policies().get(kind)
        if policy is None:
            policy = make_policy(self.config, kind, self.shards)
            setattr(self, kind, policy)
        return policy


def takes_names(config: Config) -> bool:
    """Return whether the configured policy is one model of ids, features, contexts and users."""
    known = POLICIES.get(config.policy)
    return known is not None and known.takes_names


def sent_features(record: Rank) -> tuple[Features, Sequence[Features | None]]:
    """Return a decision's context and its actions' features as they were sent, if the log still has them."""
    if record.features is None:
        return (), [None] * len(record.actions)
    sent = msgspec.json.decode(record.features)
    return sent["context"], sent["actions"]


def same_model(config: Config, like: Config) -> Config:
    """Return `config` with the model of `like`."""
    return msgspec.structs.replace(
        config, policy=like.policy, parameters=like.parameters, dimensions=like.dimensions
    )


def _compared(config: Config) -> Config:
    """Return what a comparison depends on: with anything of it changed, the sums begin anew."""
    return msgspec.structs.replace(
        same_model(Config(), config), holdback=config.holdback, challenger=config.challenger
    )


def models_to_learn(engine: Engine, config: Config) -> list[Config]:
    """Return the models that first have to learn the log if these rules are to be in force."""
    found = [] if same_model(engine.config, config) == engine.config else [alone(config)]
    wanted, rival = challenger_of(config), engine.rival
    if wanted is not None and (rival is None or same_model(rival.config, wanted) != rival.config):
        found.append(wanted)
    return found


def check_config(config: Config, shards: Shards | None = None) -> None:
    """Raise if the policy cannot be made so, neither over ids nor over features, or not in shards."""
    check_shares(config)
    other = challenger_of(config)
    if shards is not None:
        check_sharding(config)
        if other is not None:
            raise ParameterError(
                "a challenger cannot be compared while users are kept in shards; leave out one of both"
            )
    possible(config)
    if other is not None:
        possible(other)


def check_sharding(config: Config) -> None:
    """Raise if the policy cannot be kept in shards."""
    known = POLICIES.get(config.policy)
    if known is not None and "engine" not in known.not_saved:
        raise ParameterError(
            f"the policy {config.policy!r} cannot be kept in shards, cab and hierarchical can; leave out `engine`"
        )
    if config.parameters.get("thompson"):
        raise ParameterError("thompson=true draws from one random stream, which shards do not have")


def possible(config: Config) -> list[Kind]:
    """Return the kinds of contexts that the policy takes; at least one."""
    if takes_names(config):
        make_policy(config, "model")
        return ["model"]
    found: list[Kind] = []
    reason = ParameterError("")
    kinds: tuple[Kind, ...] = ("items", "vectors")
    for kind in kinds:
        try:
            make_policy(config, kind)
            found.append(kind)
        except ParameterError as error:
            reason = error
    if not found:
        raise reason
    return found


def warm_up(config: Config) -> None:
    """Compile what is compiled on first use, so that the first request does not wait for it."""
    other = challenger_of(config)
    if other is not None:
        warm_up(other)
        config = alone(config)
    made = Engine()
    made.configure(config, 0)
    for kind in possible(config):
        features: Features | None = [{"a": 1}] if kind != "items" else None
        actions = [Action("a", features), Action("b", features)]
        for user in ("one", "two", "three"):
            made.rank(Question(user, user, actions), 0)
            made.reward(user, 1.0, 0)
        made.policies()[kind].tensors()
        made.forget("one", 0)
        made.events.clear()


def make_policy(config: Config, kind: Kind, shards: Shards | None = None) -> Policy:
    """Return the configured policy, empty."""
    if config.policy not in POLICIES:
        raise ParameterError(f"policy is {config.policy!r}, expected one of {', '.join(sorted(POLICIES))}")
    if not POLICIES[config.policy].replays:
        raise ParameterError(
            f"the policy {config.policy!r} cannot be served: its state cannot be made again from the log of payoffs"
        )
    context: dict[Kind, dict[str, Any]] = {
        "items": {"one_hot": True},
        "vectors": {"n_features": config.dimensions},
        "model": {},
    }
    given = dict(context[kind])
    for name, why in OURS.items():
        if name in config.parameters:
            raise ParameterError(f"{name!r} cannot be a parameter of the policy: {why}")
    if shards is not None:
        check_sharding(config)
        if kind != "items" or not getattr(shards, "vectors_only", False):
            given["engine"] = shards
    try:
        return POLICIES[config.policy](**given, **config.parameters)
    except CoterieError:
        raise
    except Exception as error:  # whatever a constructor makes of a value that it did not expect
        raise ParameterError(
            f"the policy {config.policy!r} does not take these parameters: {error}"
        ) from error


def restore_policy(
    part: tuple[int, bytes] | None, config: Config, kind: Kind, shards: Shards | None = None
) -> Policy | None:
    """Return the policy that (payoffs learned, safetensors) hold."""
    if part is None:
        return None
    policy = make_policy(config, kind, shards)
    policy.restore(load(part[1]))
    policy.learned = part[0]
    return policy


def _drop_if_known(policy: Policy, number: int) -> None:
    with suppress(LookupError):  # never updated, so the model holds nothing of the user
        policy.drop(number)


def draw(event: str) -> tuple[float, float]:
    """Return two uniform numbers in [0, 1) that depend on the event's id only."""
    digest = blake2b(event.encode("utf-8", "surrogatepass"), digest_size=16, person=b"coterie").digest()
    first, second = digest[:8], digest[8:]
    return (int.from_bytes(first, "little") >> 11) / 2**53, (int.from_bytes(second, "little") >> 11) / 2**53


def probability(best: bool, exploration: float, choices: int) -> float:
    """Return how likely an action was: the policy's choice, or one of all by chance."""
    return exploration / choices + (1 - exploration if best else 0.0)


def _features(question: Question) -> bytes:
    return _plain.encode(
        {"context": question.context, "actions": [action.features for action in question.actions]}
    )
