"""What both clients share: requests as values, when to try again, and what answers mean."""

import json
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Generic, Literal, TypeVar, final
from urllib.parse import quote

from coterie.errors import MissingExtraError, NoAnswerError, ParameterError, ServiceError

JsonObject = dict[str, Any]
Features = Sequence[Mapping[str, Any]]
Action = str | Mapping[str, Any]  # an id, or {"id": …, "features": […], "cost": …}
Outcome = Literal["applied", "duplicate", "late", "not_activated", "not_learned", "unknown_event", "not_sent"]
PASSING = frozenset((408, 429, 500, 502, 503, 504))  # statuses after which it is worth trying again
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two attempts
AT_ONCE = 16  # rewards of a batch that are under way together
T = TypeVar("T")


@final
@dataclass(frozen=True)
class Ranked:
    """A decision: the action to show, and how likely each one was.

    event_id
        The id for its reward.
    chosen
        The id of the action to show.
    probabilities
        The probability of each action, the best first; empty if the service did not answer.
    fallback
        True if the service did not answer, and `chosen` is the fallback of the call. Then nothing is to be learned.
    capped
        The actions that the user has seen as often as a frequency cap allows.
    all_capped
        True if these are all actions, so that the baseline was chosen.
    unaffordable
        The actions that cost more than what is left of the budget.

    >>> Ranked("3f2b8c6e", "jazz", {"jazz": 0.95, "news": 0.05}).chosen
    'jazz'
    """

    event_id: str
    chosen: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    fallback: bool = False
    capped: tuple[str, ...] = ()
    all_capped: bool = False
    unaffordable: tuple[str, ...] = ()


Event = str | Ranked  # an event by its id, or by its decision


@final
@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, the same bytes in every attempt, and what its answer means."""

    method: str
    path: str
    content: bytes | None
    read: Callable[[Any], T]  # the result in an answer
    known: T | None = None  # the result, if nothing is to be sent
    otherwise: T | None = None  # the result, if the service does not answer


@final
@dataclass(frozen=True)
class Limits:
    """How long and how often a call is tried."""

    timeout: float  # seconds for one attempt
    within: float  # seconds for all of them
    attempts: int

    def __post_init__(self) -> None:
        for name, value in (("timeout", self.timeout), ("within", self.within)):
            if not 0 < value <= 3600:
                raise ParameterError(f"{name} is {value!r}, expected seconds above 0, at most 3600")
        if self.attempts < 1:
            raise ParameterError(f"attempts is {self.attempts!r}, expected 1 or more")


@final
class Attempts(Generic[T]):
    """The attempts of one call, until it has a result: how long each may take, and the pause before the next one."""

    def __init__(self, call: Call[T], limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.call, self.limits, self.clock = call, limits, clock
        self.result = call.known
        self.end = clock() + limits.within
        self.made = 0
        self.pause = 0.0  # seconds before the next one

    def begin(self) -> float:
        """Return the seconds for an attempt that starts now."""
        self.made += 1
        return max(0.001, min(self.limits.timeout, self.end - self.clock()))

    def whole(self, parts: Iterable[bytes], seconds: float) -> bytes:
        """Return the content of an answer that comes in parts, each in time; raises if all of them take too long."""
        found, end = [], self.clock() + seconds
        for part in parts:
            found.append(part)
            if self.clock() > end:
                raise TimeoutError(f"the answer took more than {seconds:g} s")
        return b"".join(found)

    def answered(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        """Take the result from an answer, or note the failure; raises ServiceError if the answer is a refusal."""
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if status >= 400:
            error = answer.get("error") if isinstance(answer, dict) else None
            found = error if isinstance(error, dict) else {}
            code, message = found.get("code", "unknown"), found.get("message", f"status {status}")
            if status not in PASSING:
                raise ServiceError(status, code, message)
            wait = headers.get("retry-after", "")
            self.failed(f"{status} {code}: {message}", float(wait) if wait.isdecimal() else 0.0)
            return
        try:
            self.result = self.call.read(answer)
        except (LookupError, TypeError, ValueError, AttributeError):
            self.failed(f"an answer that is not the service's: status {status}, {content[:80]!r}")

    def failed(self, why: str, wait: float = 0.0) -> None:
        """Set the pause before the next attempt; if there is none, take what the call has instead, or raise."""
        # The pause doubles; chance keeps many clients from coming back at the same moment.
        doubled: float = FIRST_PAUSE * 2.0 ** min(self.made - 1, 10)
        self.pause = max(wait, min(LONGEST_PAUSE, doubled) * random.uniform(0.5, 1.0))
        if self.made < self.limits.attempts and self.clock() + self.pause < self.end:
            return
        if self.call.otherwise is None:
            took = f"{self.made} attempts within {self.limits.within:g} s"
            raise NoAnswerError(f"the service did not answer in {took}: {why}; it may be down or too slow")
        self.result = self.call.otherwise


def connection(kind: str, url: str, key: str | None, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return httpx's `kind` of client, and the errors of an attempt without an answer."""
    if find_spec("httpx") is None:
        raise MissingExtraError("the client needs httpx: pip install httpx")
    import httpx

    own = {"authorization": f"Bearer {key}"} if key is not None else {}
    headers = {"content-type": "application/json", **own}
    return getattr(httpx, kind)(base_url=url, headers=headers, **options), (httpx.RequestError, TimeoutError)


def rank_call(
    user: str | None,
    actions: Sequence[Action],
    context: Features,
    excluded: Sequence[str],
    event_id: str | None,
    deferred: bool,
    fallback: str | None,
) -> Call[Ranked]:
    """Return the request of a rank; its event id is made here, so that every attempt has the same one."""
    event = uuid.uuid4().hex if event_id is None else event_id
    sent = [{"id": one} if isinstance(one, str) else dict(one) for one in actions]
    body: JsonObject = {} if user is None else {"user": user}
    body |= {"actions": sent, "eventId": event}
    more = {"context": [*map(dict, context)], "excluded": list(excluded), "deferActivation": deferred}
    if fallback is not None and fallback not in {one.get("id") for one in sent} - {*excluded}:
        raise ParameterError(f"fallback is {fallback!r}, expected one of the actions that are not excluded")
    otherwise = None if fallback is None else Ranked(event, fallback, {}, True)
    content = _json(body | {name: value for name, value in more.items() if value})
    return Call("POST", "/v1/rank", content, ranked_of, otherwise=otherwise)


def reward_call(
    event: Event,
    value: float | None,
    reward_id: str | None,
    parts: Mapping[str, float] | None,
    cost: float | None,
) -> Call[Outcome]:
    """Return the request of a reward; its own id tells a second attempt from a second reward."""
    said = {"value": value, "parts": dict(parts) if parts else None, "cost": cost}
    body: JsonObject = {name: one for name, one in said.items() if one is not None}
    content = _json(body | {"rewardId": uuid.uuid4().hex if reward_id is None else reward_id})
    known: Outcome | None = "not_sent" if _is_fallback(event) else None
    return Call("POST", f"{_path(event)}/reward", content, lambda answer: answer["outcome"], known)


def activate_call(event: Event) -> Call[bool]:
    """Return the request that says that a deferred decision was shown."""
    known = False if _is_fallback(event) else None
    return Call(
        "POST", f"{_path(event)}/activate", None, lambda answer: answer["outcome"] == "activated", known
    )


def friends_call(user: str, friends: Sequence[str] | Mapping[str, float]) -> Call[dict[str, float]]:
    """Return the request that gives a user these friends and no others."""
    if isinstance(friends, str):
        raise ParameterError(f"friends is the text {friends!r}, expected ids or a mapping of ids to weights")
    given = dict(friends) if isinstance(friends, Mapping) else [*friends]
    path = f"/v1/users/{quote(user, safe='')}/friends"
    return Call("PUT", path, _json({"friends": given}), lambda answer: dict(answer["friends"]))


def explain_call(event: Event) -> Call[JsonObject]:
    """Return the request of a decision with its reasons."""
    return Call("GET", _path(event), None, dict)


def ranked_of(answer: Any) -> Ranked:
    """Return the decision in an answer."""
    chances = {one["id"]: float(one["probability"]) for one in answer["ranking"]}
    capped, all_capped = tuple(answer.get("capped", ())), answer.get("allCapped", False)
    over = tuple(answer.get("unaffordable", ()))
    return Ranked(answer["eventId"], answer["chosen"], chances, False, capped, all_capped, over)


def _json(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(f"the request cannot be written as JSON: {error}") from error


def _is_fallback(event: Event) -> bool:
    return isinstance(event, Ranked) and event.fallback


def _path(event: Event) -> str:
    return f"/v1/events/{quote(event if isinstance(event, str) else event.event_id, safe='')}"
