"""Whether a recorded history of requests about events could have happened one request after the other.

Several clients ask different services about the same events at once. A history is linearizable if each request can
be given one moment between its begin and its end so that, in that order, every answer is what one service alone would
say: the first rank decides, a rank with the same body gets the same answer and one with another body 409, the first
reward counts, and what was acknowledged is seen by all that begin later. Events are independent, so each is checked
alone.
"""

import json
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from tests.service.crash_press import Facts, Request, Sender

BODIES = ("ab", "ba")  # the actions of two ranks that want the same event
EACH = 10  # requests about an event
AT_ONCE = 3  # events that requests are about


class Said(NamedTuple):
    """An answer, as far as the rule is about it."""

    what: str  # of a rank: the answer or "409"; of a reward: its outcome; of a read: the choice, or "404"
    chosen: str = ""


@dataclass
class Operation:
    """A request about an event. Without an answer it may have had its effect at any time after its begin, or none."""

    kind: str  # "rank", "reward" or "read"
    body: str
    begin: float
    end: float = float("inf")
    said: Said | None = None


@dataclass
class History:
    """All requests, by event."""

    events: dict[str, list[Operation]] = field(default_factory=dict)
    last: str = ""  # whose decision was acknowledged last

    def wrong(self) -> list[str]:
        """Return the events whose requests have no possible order."""
        return [event for event, found in self.events.items() if not linearizable(found)]


class State(NamedTuple):
    """One event: what was decided for which body, whether a reward counted, and whether its wait is over."""

    body: str = ""
    answer: Said | None = None
    rewarded: bool = False
    closed: bool = False


def after(state: State, one: Operation) -> State | None:
    """Return the state after a request, or None if it would have been answered otherwise."""
    said = one.said
    if one.kind == "rank":
        if not state.body:
            return None if said is not None and said.what == "409" else State(one.body, said)
        if one.body != state.body:
            return state if said is None or said.what == "409" else None
        if state.answer is None:  # decided by a request without an answer
            return None if said is not None and said.what == "409" else state._replace(answer=said)
        return state if said in (None, state.answer) else None
    if one.kind == "read":
        if said is None:
            return state
        if not state.body:
            return state if said.what == "404" else None
        known = state.answer is None or said.what == state.answer.chosen
        return state if known and said.what != "404" else None
    if not state.body:
        return state if said is None or said.what == "unknown_event" else None
    first = not (state.rewarded or state.closed)
    if said is None:
        return state._replace(rewarded=True) if first else state
    if said.what == "applied":
        return state._replace(rewarded=True) if first else None
    if said.what == "duplicate":
        return state if state.rewarded else None
    return state._replace(closed=True) if said.what == "late" else None


def linearizable(operations: list[Operation]) -> bool:
    """Search an order of the requests, by Wing and Gong's algorithm: next comes one that begins before all ends."""

    @cache
    def possible(left: frozenset[int], state: State) -> bool:
        answered = [operations[k].end for k in left if operations[k].said is not None]
        if not answered:
            return True
        for k in left:
            one = operations[k]
            if one.begin <= min(answered):
                reached = after(state, one)
                if reached is not None and possible(left - {k}, reached):
                    return True
        return False

    return possible(frozenset(range(len(operations))), State())


class Racer(Sender):
    """Asks about events that others ask about at the same time, and notes begin, end and answer of every request."""

    def __init__(self, number: int, seed: int, history: History) -> None:
        super().__init__(number, seed, Facts(), policies=False)
        self.history = history
        self.operation: Operation | None = None

    def next(self) -> Request:
        """Return a new request: the one before may have been left without an answer."""
        made = sum(min(EACH, len(found)) for found in self.history.events.values()) // EACH
        event = f"raced-{self.rng.randrange(max(0, made - AT_ONCE + 1), made + 1)}"
        chance = self.rng.random()
        if self.history.last and self.rng.random() < 0.5:  # elsewhere, as soon as it may be seen there
            event, chance = self.history.last, 0.5 + chance / 2
        path = f"/v1/events/{event}"
        body = self.rng.choice(BODIES)
        if chance < 0.5:
            sent: Any = {"eventId": event, "actions": [{"id": name} for name in body]}
            request = Request("rank", "POST", "/v1/rank", sent, event=event)
            self.operation = Operation("rank", body, 0.0)
        elif chance < 0.8:
            request = Request("reward", "POST", f"{path}/reward", {"value": 1.0}, event=event)
            self.operation = Operation("reward", "", 0.0)
        else:
            request = Request("read", "GET", path, None, event=event)
            self.operation = Operation("read", "", 0.0)
        return request

    def send(self, request: Request) -> None:
        """Note its begin."""
        assert self.operation is not None
        self.operation.begin = time.monotonic()
        self.history.events.setdefault(request.event, []).append(self.operation)

    def answered(self, request: Request, status: int, answer: bytes) -> None:
        """Note its answer."""
        assert self.operation is not None
        told = json.loads(answer)
        if request.kind == "rank":
            assert status in (201, 409), (status, answer)
            ranking = json.dumps(told, sort_keys=True)
            self.operation.said = Said("409") if status == 409 else Said(ranking, told["chosen"])
            self.history.last = request.event if len(self.history.events[request.event]) < EACH else ""
        elif request.kind == "reward":
            assert status == 200, (status, answer)
            self.operation.said = Said(told["outcome"])
        else:
            assert status in (200, 404), (status, answer)
            self.operation.said = Said("404" if status == 404 else told["chosen"])
        self.operation.end = time.monotonic()
