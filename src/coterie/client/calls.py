"""What both clients share: requests as values, when to try again, and answers."""

import json
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, final
from urllib.parse import quote

from coterie.errors import MissingExtraError, NoAnswerError, ParameterError, ServiceError

Features = Sequence[Mapping[str, Any]]
Action = str | Mapping[str, Any]  # an id, or {"id": …, "features": […]}
Outcome = Literal["applied", "duplicate", "late", "not_activated", "unknown_event", "not_sent"]
PASSING = frozenset((408, 429, 500, 502, 503, 504))  # statuses after which it is worth trying again
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two attempts


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

    >>> Ranked("3f2b8c6e", "jazz", {"jazz": 0.95, "news": 0.05}).chosen
    'jazz'
    """

    event_id: str
    chosen: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    fallback: bool = False
    capped: tuple[str, ...] = ()
    all_capped: bool = False


Event = str | Ranked  # an event by its id, or by its decision


@final
class Call:
    """One request, the same bytes in every attempt."""

    def __init__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        self.method, self.path = method, path
        self.body = {} if body is None else body
        self.content: bytes | None = None
        try:
            if body is not None:
                self.content = json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ParameterError(f"the request cannot be written as JSON: {error}") from error


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
class Attempts:
    """The attempts of one call: how long each may take, and how long to pause before the next one."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.end = now + limits.within
        self.made = 0
        self.last = "no attempt was made"

    def begin(self, now: float) -> float:
        """Return the seconds for an attempt that starts now."""
        self.made += 1
        return max(0.001, min(self.limits.timeout, self.end - now))

    def failed(self, why: str, now: float, wait: float = 0.0) -> float:
        """Return how long to pause before the next attempt; raises NoAnswerError if there is none."""
        self.last = why
        # The pause doubles; chance keeps many clients from coming back at the same moment.
        doubled: float = FIRST_PAUSE * 2.0 ** min(self.made - 1, 10)
        pause = max(wait, min(LONGEST_PAUSE, doubled) * random.uniform(0.5, 1.0))
        if self.made >= self.limits.attempts or now + pause >= self.end:
            took = f"{self.made} attempts within {self.limits.within:g} s"
            raise NoAnswerError(f"the service did not answer in {took}: {why}; it may be down or too slow")
        return pause


def need_httpx() -> None:
    """Raise if httpx is not installed."""
    if find_spec("httpx") is None:
        raise MissingExtraError("the client needs httpx: pip install 'coterie[client]'")


def headers_of(key: str | None) -> dict[str, str]:
    """Return the headers of every request."""
    own = {"authorization": f"Bearer {key}"} if key is not None else {}
    return {"content-type": "application/json", **own}


def id_of(event: Event) -> str:
    """Return an event's id."""
    return event.event_id if isinstance(event, Ranked) else event


def rank_call(
    user: str | None,
    actions: Sequence[Action],
    context: Features,
    excluded: Sequence[str],
    event_id: str | None,
    deferred: bool,
) -> Call:
    """Return the request of a rank; its event id is made here, so that every attempt has the same one."""
    body: dict[str, Any] = {} if user is None else {"user": user}
    body |= {
        "actions": [{"id": one} if isinstance(one, str) else dict(one) for one in actions],
        "eventId": uuid.uuid4().hex if event_id is None else event_id,
    }
    more = {"context": [*map(dict, context)], "excluded": list(excluded), "deferActivation": deferred}
    return Call("POST", "/v1/rank", body | {name: value for name, value in more.items() if value})


def reward_call(event: str, value: float, reward_id: str | None) -> Call:
    """Return the request of a reward; its own id tells a second attempt from a second reward."""
    body = {"value": value, "rewardId": uuid.uuid4().hex if reward_id is None else reward_id}
    return Call("POST", f"/v1/events/{quote(event, safe='')}/reward", body)


def event_call(event: str, what: str) -> Call:
    """Return a request about an event: to activate it, or to have it explained."""
    path = f"/v1/events/{quote(event, safe='')}"
    return Call("GET", path) if what == "explain" else Call("POST", f"{path}/{what}")


def fallback_for(call: Call, fallback: str | None, error: NoAnswerError) -> Ranked:
    """Return the fallback of a rank that was not answered; raises the error if there is none."""
    if fallback is None:
        raise error
    return Ranked(call.body["eventId"], fallback, {}, True)


def check_fallback(call: Call, fallback: str | None) -> None:
    """Raise if the fallback is not an action that may be shown."""
    open_to = {one["id"] for one in call.body["actions"]} - {*call.body.get("excluded", ())}
    if fallback is not None and fallback not in open_to:
        raise ParameterError(f"fallback is {fallback!r}, expected one of the actions that are not excluded")


def ranked_of(answer: Any) -> Ranked:
    """Return the decision in an answer."""
    chances = {one["id"]: float(one["probability"]) for one in answer["ranking"]}
    capped, all_capped = tuple(answer.get("capped", ())), answer.get("allCapped", False)
    return Ranked(answer["eventId"], answer["chosen"], chances, capped=capped, all_capped=all_capped)


def result_of(status: int, content: Any, headers: Mapping[str, str]) -> tuple[Any, float] | None:
    """Return None for a good answer, or why it failed and the seconds to wait; raises ServiceError if it is final."""
    if status < 400:
        return None
    told = content.get("error", {}) if isinstance(content, dict) else {}
    code, message = told.get("code", "unknown"), told.get("message", f"status {status}")
    if status not in PASSING:
        raise ServiceError(status, code, message)
    wait = headers.get("retry-after", "")
    return f"{status} {code}: {message}", float(wait) if wait.isdigit() else 0.0
