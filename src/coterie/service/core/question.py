"""Questions: what a request asks to be decided."""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from coterie.data.logs.records import Features, Rank, request_of
from coterie.data.logs.rules import Config
from coterie.service.core.encoding import KnownActions, plain_features
from coterie.service.problems import Problem

_canonical = msgspec.json.Encoder(order="deterministic")  # MessagePack has no integers beyond 64 bits
_plain = msgspec.json.Encoder()


def hash_sent(body: bytes) -> bytes:
    """Return the hash of a request, for `Question.sent`."""
    return blake2b(body, digest_size=16).digest()


class Action(Struct, frozen=True):
    """One thing that could be shown."""

    id: str
    features: Features | None = None


class Question(Struct, frozen=True):
    """What is to be decided. The routes have checked ids and sizes."""

    event: str
    user: str
    actions: Sequence[Action]
    context: Features = ()
    excluded: frozenset[str] = frozenset()
    deferred: bool = False
    baseline: str | None = None  # the first action that is not excluded, unless named
    slot: str | None = None
    work: int = 0  # about how many crosses its features make
    fresh: bool = False  # whether the service made the event's id, so that it cannot be a retry
    capped: frozenset[str] = frozenset()  # actions that reached a frequency cap: see the module `caps`
    costs: tuple[
        float, ...
    ] = ()  # of showing each action; none if all are 0. With a budget: see the module `budget`
    unaffordable: frozenset[str] = frozenset()  # actions that cost more than is left of it
    price: float = 0.0  # of cost, in payoffs
    share: float = math.inf  # of the budget, for this decision
    sent: bytes = b""  # a hash of the request as it came, with the slot if it asks for several

    def digest(self) -> bytes:
        """Return a hash that tells a retry from another request with the same event id."""
        if self.sent:
            return self.sent
        return blake2b(_canonical.encode(self), digest_size=16).digest()

    def check_retry(self, decided: Rank) -> None:
        """Raise if its event was decided for another request."""
        if decided.digest != self.digest():
            way_out = "use a new event id, or send the same body again to get the same answer"
            name = request_of(self.event)
            message = f"event {name!r} was decided for another request; {way_out}"
            raise Problem(409, "event_exists", message)


def without_ignored(question: Question, config: Config) -> Question:
    """Return the question without the objects of features that the configuration leaves out."""
    letters = config.ignored
    if not letters:
        return question

    def kept(features: Features) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in part.items() if k[:1] not in letters or not isinstance(v, Mapping)}
            for part in features
        ]

    actions = [
        Action(one.id, None if one.features is None else kept(one.features)) for one in question.actions
    ]
    return msgspec.structs.replace(question, actions=actions, context=kept(question.context))


def pack_features(question: Question) -> bytes | None:
    """Return the features of a question as a record keeps them; None if it has none."""
    context, actions = question.context, question.actions
    features: Any
    if isinstance(actions, KnownActions):
        featured, features = actions.featured, actions.plain
    else:
        featured = any(action.features for action in actions)
        features = [plain_features(action.features) for action in actions]
    if not (featured or context):
        return None
    return _plain.encode({"context": plain_features(context), "actions": features})
