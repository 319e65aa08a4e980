"""Traffic for services that are killed: it knows what was acknowledged, and sends again what was not answered.

Every user belongs to one connection, which waits for each answer, so what happened to a user has one order. A
request that a kill left without an answer is sent again to the next service, as a careful client would.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from coterie.bench.service.loadtest import LoadConnection, action_features, context_features, request_bytes
from coterie.data.logs.records import SLOT

CONNECTIONS, USERS = 6, 4  # users of each connection
POLICIES = ("hierarchical", "linucb")

Kind = Literal["rank", "again", "slots", "reward", "forget", "friends", "configure", "read"]


@dataclass
class Request:
    """One request, sent until it is answered."""

    kind: Kind
    method: str
    path: str
    body: Any
    user: str = ""
    event: str = ""
    sent: bool = False  # to a service that was killed


@dataclass
class Facts:
    """What the services acknowledged, over all their lives."""

    users: dict[str, str] = field(default_factory=dict)  # of each event, slots apart
    decided: set[str] = field(default_factory=set)  # must be in the log, once
    rewarded: set[str] = field(default_factory=set)  # must be learned, once
    gone: set[str] = field(default_factory=set)  # events of users who are forgotten: must not be in the log
    configured: set[float] = field(default_factory=set)  # shares of exploration that were in force
    counts: dict[str, int] = field(default_factory=dict)  # answers by kind of request
    again: int = 0  # answers to requests that were sent again

    def forgetting(self, user: str) -> None:
        """Note that a user is about to be forgotten: whether the events are there is open until the answer."""
        mine = {event for event in self.decided if self.users[event] == user}
        self.decided -= mine
        self.rewarded -= mine

    def forgot(self, user: str) -> None:
        """Note that a user is forgotten."""
        self.gone |= {event for event, whose in self.users.items() if whose == user}
        self.users = {event: whose for event, whose in self.users.items() if whose != user}


class Sender:
    """One connection's users and what it does to them."""

    def __init__(self, number: int, seed: int, facts: Facts, policies: bool) -> None:
        self.number = number
        self.rng = random.Random(f"{seed} {number}")
        self.facts = facts
        self.policies = policies  # whether the policy is changed, too
        self.waiting: Request | None = None
        self.made = 0
        self.users = [f"user-{number}-{k}" for k in range(USERS)]
        self.open: list[tuple[str, str]] = []  # events that may get a reward, with their users
        self.answers: list[tuple[Request, bytes]] = []  # the last ranks, with what was decided

    def next(self) -> Request:
        """Return what to send: first what was not answered."""
        if self.waiting is None:
            self.waiting = self._make()
        return self.waiting

    def _make(self) -> Request:
        self.made += 1
        chance = self.rng.random()
        user = self.users[self.rng.randrange(USERS)]
        if chance < 0.04:
            return Request("forget", "DELETE", f"/v1/users/{user}", None, user)
        if chance < 0.06 and self.number:
            friends = [name for name in self.users if name != user and self.rng.random() < 0.5]
            return Request("friends", "PUT", f"/v1/users/{user}/friends", {"friends": friends}, user)
        if chance < 0.08 and self.number == 0:
            return self._configure()
        if self.open and chance < 0.45:
            event, whose = self.open.pop(self.rng.randrange(len(self.open)))
            value = float(self.rng.random() < 0.3)
            told = {"value": value, "parts": {"clicked": value, "seconds": self.rng.random()}}
            return Request("reward", "POST", f"/v1/events/{event}/reward", told, whose, event)
        if self.answers and chance < 0.52:
            before, _ = self.rng.choice(self.answers)
            return Request("again", "POST", before.path, before.body, before.user, before.event)
        event = f"event-{self.number}-{self.made}"
        if chance > 0.95:
            return self._slots(user, event)
        actions: list[dict[str, Any]] = [{"id": f"item-{k}", "cost": 0.5 * k} for k in range(6)]
        body: dict[str, Any] = {"eventId": event, "actions": actions}
        if self.rng.random() < 0.6:
            user = ""  # nobody knows who: for guardrails each is a user
        else:
            body["user"] = user
        if self.rng.random() < 0.6:
            body["context"] = context_features(self.made % 50)
            body["actions"] = [{**action, "features": action_features(k)} for k, action in enumerate(actions)]
        return Request("rank", "POST", "/v1/rank", body, user, event)

    def _slots(self, user: str, event: str) -> Request:
        body = {
            "contextFeatures": [{"user": {"id": user}}, *context_features(self.made % 50)],
            "eventId": event,
            "actions": [{"id": f"item-{k}", "features": action_features(k)} for k in range(5)],
            "slots": [{"id": f"slot-{k}", "baselineAction": f"item-{k}"} for k in range(3)],
        }
        return Request("slots", "POST", "/personalizer/v1.0/multislot/rank", body, user, event)

    def _configure(self) -> Request:
        body: dict[str, Any] = {"wait": 1.0, "exploration": round(self.rng.uniform(0.05, 0.3), 9)}
        body |= {"payoff": {"clicked": 1.0}, "guardrails": [{"part": "clicked", "least": 0.9}]}
        body |= {"budget": {"amount": 1.0}, "caps": [{"looks": 20, "period": 60}]}
        if self.policies and self.rng.random() < 0.2:
            body["policy"] = self.rng.choice(POLICIES)
        return Request("configure", "PUT", "/v1/configuration", body)

    def answered(self, request: Request, status: int, answer: bytes) -> None:
        """Note what an answer promises."""
        facts, event, user = self.facts, request.event, request.user
        self.waiting = None
        facts.counts[request.kind] = facts.counts.get(request.kind, 0) + 1
        facts.again += request.sent
        said = f"{request} was answered {status}: {answer!r}"
        if request.kind in ("rank", "slots"):
            assert status == 201, said
            events = [event] if request.kind == "rank" else [f"{event}{SLOT}{k}" for k in range(3)]
            facts.decided |= set(events)
            facts.users |= dict.fromkeys(events, user)
            if request.kind == "rank":
                self.open.append((event, user))
                self.answers = [*self.answers[-20:], (request, answer)]
        elif request.kind == "again":
            # Whichever service is asked, and whatever happened since: an event has one decision.
            first = next(decided for one, decided in self.answers if one.event == event)
            assert (status, json.loads(answer)) == (201, json.loads(first)), f"{said}, before {first!r}"
        elif request.kind == "reward":
            outcome = json.loads(answer)["outcome"]
            assert (status, outcome in ("applied", "duplicate", "late")) == (200, True), said
            if outcome != "late":
                facts.rewarded.add(event)
        elif request.kind == "friends":
            assert status in (200, 422), said  # not every policy uses friends
        elif request.kind == "forget":
            assert status in (204, 404), said
            facts.forgot(user)
            if request.sent:
                # The first one may be with a service that stands still, and take effect when that goes on.
                self.users[self.users.index(user)] = f"{user}-{self.made}"
        else:
            assert status == 200, said
            facts.configured.add(request.body["exploration"])

    def send(self, request: Request) -> None:
        """Note what a request may do even if no answer comes."""
        if request.kind == "forget":
            self.facts.forgetting(request.user)
            self.open = [pair for pair in self.open if pair[1] != request.user]
            self.answers = [pair for pair in self.answers if pair[0].user != request.user]


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[LoadConnection]:
    """Open one connection."""
    _, client = await asyncio.get_running_loop().create_connection(LoadConnection, "127.0.0.1", port)
    try:
        yield client
    finally:
        client.transport.close()


async def press(port: int, senders: list[Sender], answers: int, enough: asyncio.Event) -> None:
    """Send until the service is gone; `enough` is set after so many answers."""
    left = answers

    async def work(sender: Sender) -> None:
        nonlocal left
        with suppress(ConnectionError, OSError):
            async with connection(port) as client:
                while True:
                    request = sender.next()
                    sender.send(request)
                    body = b"" if request.body is None else msgspec.json.encode(request.body)
                    wire = request_bytes(request.method, request.path, body, f"127.0.0.1:{port}", None)
                    try:
                        status, answer = await client.ask(wire)
                    except (ConnectionError, OSError):
                        request.sent = True
                        raise
                    sender.answered(request, status, answer)
                    left -= 1
                    if left <= 0:
                        enough.set()

    if answers <= 0:
        enough.set()
    try:
        await asyncio.gather(*map(work, senders))
    finally:
        enough.set()
