"""Random requests to the whole service: extreme numbers, broken structures, any order, any policy, any model file.

`python -m tests.service.fuzzing SEED REQUESTS STORE POLICY` sends them to the application in its own process, so that
a crash is seen as the end of that process. It checks after every request: no answer is a 5xx; a request that is
answered with an error has changed nothing. After every twentieth: somebody else is still served. At the end, and at
every restart in between: no number of the state is NaN or infinite, and a replay of the log, from empty and from the
snapshot, gives the same bits. It prints a line per restart, and `done REQUESTS` at the end.
"""

import asyncio
import json
import logging
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from safetensors.numpy import load, save

from coterie.data.logs.rules import Config
from coterie.policies import POLICIES
from coterie.policies.base.vowpal_options import is_installed
from coterie.service.app import create_app
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.http.keys import Keyring
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.settings import Durability, Settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import Clock

NUMBERS: tuple[Any, ...] = (
    0, -0.0, 1, -1, 0.5, 5e-324, -5e-324, 1e-310, 2.3e-308, 1e-300, 1e-161, 1e-160, -1e-155, 1e-80, 1e-78, 1e-30,
    1e-20, 9e-21, 1e-11, 1e-3, 7.25, 1e3, 1e6, 1e7, 1e12, 1e13, 1e100, 1e154, 1e155, 1e200, -1e300,
    1.7976931348623157e308, 2**31, 2**53, 2**63, 2**64, -(2**64), 10**30, 10**308, 10**309, 10**400,
)  # fmt: skip
WORDS = (
    "",
    "a",
    "jazz",
    "é",
    "\u202e",
    "x" * 256,
    "x" * 257,
    "..",
    "a/b",
    "a\nb",
    "\ud800",
    "\U0001f600",
    "null",
)
MODEL = "/personalizer/v1.0/model"
RARE = 0.02  # how often a valid part is replaced by something broken
PARTS = ("clicked", "bought", "seconds")
SERVED = [name for name in POLICIES if name != "vw" or is_installed()]


class Fuzzer:
    """Makes requests: method, path, body and its type."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.events = ["first"]
        self.model = b""  # a model file, as the service exported it

    def number(self) -> Any:
        rng = self.rng
        if rng.random() < 0.6:
            return rng.choice(NUMBERS)
        return rng.choice((1, -1)) * rng.random() * 10.0 ** rng.randint(-323, 308)

    def value(self, depth: int = 0) -> Any:
        """Return a feature's value of any kind."""
        kind = self.rng.random()
        if kind < 0.6:
            return self.number()
        if kind < 0.75:
            return self.rng.choice(WORDS)
        if kind < 0.85 or depth > 17:
            return self.rng.choice((True, False, None))
        if kind < 0.93:
            return [self.value(depth + 1) for _ in range(self.rng.randint(0, 3))]
        return self.features(depth + 1)[0]

    def features(self, depth: int = 0) -> list[dict[str, Any]]:
        names = [
            self.rng.choice(("size", "hour", "tone", "a.b", *WORDS)) for _ in range(self.rng.randint(0, 3))
        ]
        return [{name: self.value(depth) for name in names} for _ in range(self.rng.choice((1, 1, 2)))]

    def broken(self, value: Any) -> Any:
        """Return a value, or sometimes something of another kind."""
        if self.rng.random() < RARE:
            return self.rng.choice(
                (None, [], {}, "", 0, True, self.number(), self.rng.choice(WORDS), [value])
            )
        return value

    def user(self) -> str:
        return f"user-{self.rng.randint(0, 5)}"

    def action(self, k: int) -> dict[str, Any]:
        action: dict[str, Any] = {"id": self.broken(f"item-{k}")}
        if self.rng.random() < 0.7:
            action["features"] = self.broken(self.features())
        if self.rng.random() < 0.4:
            action["cost"] = self.broken(abs(self.number()))
        return action

    def event(self) -> str:
        if self.rng.random() < 0.2:
            return self.rng.choice(self.events)
        name = f"e{self.rng.getrandbits(40)}"
        self.events = [*self.events[-50:], name]
        return name

    def rank(self) -> tuple[str, str, Any]:
        body: dict[str, Any] = {
            "user": self.broken(self.user()),
            "actions": self.broken([self.action(k) for k in range(self.rng.randint(1, 4))]),
            "eventId": self.broken(self.event()),
        }
        if self.rng.random() < 0.6:
            body["context"] = self.broken(self.features())
        if self.rng.random() < 0.1:
            body["excluded"] = self.broken(["item-0"])
        if self.rng.random() < 0.1:
            body["deferActivation"] = self.broken(True)
        return "POST", self.rng.choice(("/v1/rank",) * 9 + ("/v1/what-if",)), body

    def compatible(self) -> tuple[str, str, Any]:
        body: dict[str, Any] = {
            "actions": [
                {"id": f"item-{k}", "features": self.features()} for k in range(self.rng.randint(1, 4))
            ],
            "contextFeatures": self.broken([{"user": {"id": self.user()}}, *self.features()]),
            "eventId": self.broken(self.event()),
        }
        if self.rng.random() < 0.3:
            body["slots"] = [
                {"id": f"slot-{k}", "baselineAction": "item-0", "features": self.features()} for k in range(2)
            ]
            return "POST", "/personalizer/v1.1-preview.3/multislot/rank", body
        return "POST", "/personalizer/v1.0/rank", body

    def reward(self) -> tuple[str, str, Any]:
        value = self.rng.choice((0.0, 1.0, -1.0, 5e-324, 1e-160, 0.3, self.number()))
        event = self.rng.choice(self.events)
        if self.rng.random() < 0.3:
            return "POST", f"/personalizer/v1.0/events/{event}/reward", {"value": self.broken(value)}
        if self.rng.random() < 0.1:
            return "POST", f"/v1/events/{event}/activate", {"value": self.broken(value)}
        body: dict[str, Any] = {"value": self.broken(value)}
        if self.rng.random() < 0.3:
            body["cost"] = self.broken(abs(self.number()))
        if self.rng.random() < 0.4:
            body["parts"] = self.broken({name: self.number() for name in self.rng.sample(PARTS, 2)})
        if self.rng.random() < 0.2:
            del body["value"]
        return "POST", f"/v1/events/{event}/reward", body

    def configuration(self, policy: str) -> tuple[str, str, Any]:
        """Return a change of the rules that keeps the policy, and mostly one that is refused."""
        names = (
            "seed",
            "slots",
            "explore",
            "floor",
            "alpha",
            "gamma",
            "half_life",
            "n_features",
            "nonsense",
        )
        body: dict[str, Any] = {"policy": policy, "wait": 600.0}
        body["parameters"] = {self.rng.choice(names): self.number()} if self.rng.random() < 0.7 else {}
        for name in (
            "exploration",
            "defaultReward",
            "wait",
            "dimensions",
            "maxEvents",
            "maxUsers",
            "holdback",
        ):
            if self.rng.random() < 0.1:
                body[name] = self.number()
        if self.rng.random() < 0.5:
            body["budget"] = {
                "amount": abs(self.number()),
                "per": self.rng.choice(("decision", "day", "total")),
            }
        if self.rng.random() < 0.5:
            body["payoff"] = self.broken({name: self.number() for name in PARTS})
            sides = self.rng.choice((["most"], ["least"], ["most", "least"]))
            rail = {"part": self.rng.choice(PARTS), **{side: self.number() for side in sides}}
            body["guardrails"] = self.broken([rail])
        if self.rng.random() < 0.2:
            arguments = " ".join(f"--{k} {v}" for k, v in body["parameters"].items())
            sent = {"name": policy, "arguments": arguments}
            return "PUT", "/personalizer/v1.0/configurations/policy", self.broken(sent)
        return "PUT", "/v1/configuration", self.broken(body)

    def import_(self) -> tuple[str, str, Any]:
        """Return a model file in which one array has extreme numbers, or which is cut, or as it was exported."""
        path, content = MODEL, self.model
        if not content:
            return "PUT", path, b"\0" * self.rng.randint(0, 40)
        size = int.from_bytes(content[:8], "little")
        about = msgspec.json.decode(
            msgspec.json.decode(content[8 : 8 + size])["__metadata__"]["coterie-model"]
        )
        about["checksum"] = ""
        tensors = load(content)
        kind = self.rng.random()
        if tensors and kind < 0.8:
            name = self.rng.choice(sorted(tensors))
            array = tensors[name].copy()
            if array.size and array.dtype.kind == "f":
                with np.errstate(over="ignore"):
                    array.reshape(-1)[self.rng.randrange(array.size)] = float(np.float64(self._finite()))
            elif array.size and array.dtype.kind == "i":
                most = np.iinfo(array.dtype).max
                array.reshape(-1)[self.rng.randrange(array.size)] = self.rng.choice(
                    (-1, 0, 1, most // 2, most)
                )
            tensors[name] = array
            return "PUT", path, save(tensors, {"coterie-model": msgspec.json.encode(about).decode()})
        if kind < 0.9:
            return "PUT", path, content[: self.rng.randrange(len(content))]
        return "PUT", path, content

    def _finite(self) -> float:
        number = self.number()
        return float(number) if abs(number) < 1e308 else 1e308

    def other(self) -> tuple[str, str, Any]:
        event, user = self.rng.choice(self.events), self.user()
        return self.rng.choice(
            (
                ("GET", f"/v1/events/{event}", None),
                ("GET", f"/v1/users/{user}", None),
                ("DELETE", f"/v1/users/{user}", None),
                ("GET", f"/v1/users/{user}/friends", None),
                ("PUT", f"/v1/users/{user}/friends", {"friends": [self.user() for _ in range(3)]}),
                ("PUT", f"/v1/users/{user}/friends", {"friends": {self.user(): self.number()}}),
                ("PUT", f"/v1/users/{user}/friends", {"friends": self.value()}),
                ("GET", "/v1/statistics", None),
                ("GET", "/v1/decisions", None),
                ("GET", "/v1/users?limit=3", None),
                ("GET", f"/v1/resemblance?user={user}", None),
                ("GET", "/v1/split?item=item-0", None),
                ("GET", "/metrics", None),
                ("GET", "/personalizer/v1.0/model", None),
                ("GET", "/personalizer/v1.0/configurations/service", None),
                ("DELETE", "/personalizer/v1.0/model", None),
                ("PUT", "/personalizer/v1.0/configurations/service", {"defaultReward": self.number()}),
                ("POST", "/v1/rank", self.value()),
            )
        )

    def request(self, policy: str) -> tuple[str, str, Any]:
        """Return the next request."""
        kinds: tuple[tuple[float, Callable[[], tuple[str, str, Any]]], ...] = (
            (0.42, self.rank),
            (0.14, self.compatible),
            (0.34, self.reward),
            (0.03, lambda: self.configuration(policy)),
            (0.03, self.import_),
            (0.04, self.other),
        )
        return self.rng.choices([make for _, make in kinds], [weight for weight, _ in kinds])[0]()


class Answer(NamedTuple):
    """What the application answered."""

    status: int
    content: bytes


class Served:
    """The application over a store, called without sockets; use as `async with`."""

    def __init__(self, settings: Settings) -> None:
        self.coordinator = Coordinator(
            settings, SqliteStore(settings.store, durability=settings.durability), Clock()
        )
        self.app: Any = create_app(self.coordinator, Keyring([], []))
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> "Served":
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._life = asyncio.create_task(self.app(scope, self._asked.get, self._said.put))
        await self._asked.put({"type": "lifespan.startup"})
        said = await self._said.get()
        assert said["type"] == "lifespan.startup.complete", said
        while self.coordinator.refusing is not None:
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._asked.put({"type": "lifespan.shutdown"})
        await self._said.get()
        await self._life

    async def send(self, method: str, path: str, body: Any) -> Answer:
        """Send a request; bytes are a file, all else is JSON."""
        kind, content = "application/octet-stream", body
        if not isinstance(body, bytes):
            kind, content = "application/json", b"" if body is None else json.dumps(body).encode()
        route, _, query = path.partition("?")
        headers = [(b"host", b"127.0.0.1"), (b"content-length", str(len(content)).encode())]
        headers += [(b"content-type", kind.encode())] if content else []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": route, "raw_path": route.encode(), "query_string": query.encode(), "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        }  # fmt: skip
        waiting = [{"type": "http.request", "body": content, "more_body": False}]
        parts: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def answer(message: dict[str, Any]) -> None:
            parts.append(message)

        await self.app(scope, receive, answer)
        status = next(part["status"] for part in parts if part["type"] == "http.response.start")
        return Answer(status, b"".join(part.get("body", b"") for part in parts))


def state(coordinator: Coordinator) -> tuple[bytes, int, int]:
    """Return all of the state, as bytes, and where the log is."""
    bandit = coordinator.bandit
    return snapshot.dump(bandit), bandit.position, coordinator.store.bounds()[1]


def check_finite(coordinator: Coordinator) -> None:
    """Raise if a number of the state is not finite."""
    bandit = coordinator.bandit
    for kept in (bandit.spending, bandit.guards):  # no name in them contains either word
        assert not {"inf", "nan"} & set(re.findall(r"[a-z]+", repr(kept))), kept
    for model in bandit.models:
        for kind, policy in model.made.items():
            for name, tensor in policy.tensors().items():
                assert tensor.dtype.kind != "f" or np.isfinite(tensor).all(), f"{kind}.{name} is not finite"


def check_replay(path: Path) -> None:
    """Raise if the snapshot with its tail, and the whole log, do not give the same state."""
    store = SqliteStore(str(path))
    try:
        recovered = snapshot.dump(recover(store))
        if store.bounds()[0] == 0:
            assert recovered == snapshot.dump(recover(store, from_empty=True)), "a replay gives another state"
    finally:
        store.close()


async def run(
    fuzzer: Fuzzer, settings: Settings, policy: str, sent: int, requests: int, strict: bool
) -> None:
    """Send so many requests to a service that starts and stops; `strict` compares the state after each error."""
    async with Served(settings) as service:
        for k in range(sent + 1, sent + requests + 1):
            method, route, body = fuzzer.request(policy)
            before = state(service.coordinator) if strict else None
            answer = await service.send(method, route, body)
            what = f"request {k} with {policy}: {method} {route} {str(body)[:2000]}"
            assert answer.status < 500, f"{what}: {answer}"
            if before is not None and answer.status >= 400:
                assert state(service.coordinator) == before, f"{what}: {answer} changed the state"
            if route == MODEL and method == "GET":
                assert answer.status == 200, f"{what}: {answer}"
                fuzzer.model = answer.content
            if k % 20 == 0:
                await serve_others(service, k, what)
        check_finite(service.coordinator)


async def serve_others(service: Served, k: int, what: str) -> None:
    """Raise unless a plain request of somebody else is served as ever."""
    body = {"user": "other", "actions": [{"id": "tea"}, {"id": "milk"}], "eventId": f"other-{k}"}
    answer = await service.send("POST", "/v1/rank", body)
    assert answer.status == 201, f"after {what}, another user: {answer}"
    chances = [one["probability"] for one in json.loads(answer.content)["ranking"]]
    assert all(0 <= chance <= 1 for chance in chances), f"after {what}: {chances}"
    answer = await service.send("POST", f"/v1/events/other-{k}/reward", {"value": 1.0})
    assert answer.status == 200, f"after {what}, another user: {answer}"


def fuzz(seed: int, requests: int, path: Path, policy: str, strict: bool = True, per_run: int = 2000) -> None:
    """Send random requests to a service over a store, with restarts."""
    fuzzer, sent = Fuzzer(random.Random(seed)), 0
    while sent < requests:
        given = frozenset({"config.policy"}) if sent == 0 else frozenset()
        settings = Settings(
            store=str(path), config=Config(policy=policy), given=given, durability=Durability.LOSE_ONE_SECOND
        )
        some = min(per_run, requests - sent)
        asyncio.run(run(fuzzer, settings, policy, sent, some, strict))
        sent += some
        check_replay(path)
        print(f"restart {sent}", flush=True)
    print(f"done {sent}", flush=True)


def main() -> None:
    """Run as a process."""
    logging.disable(logging.CRITICAL)
    seed, requests, path, policy = sys.argv[1:5]
    fuzz(int(seed), int(requests), Path(path), policy, strict="--loose" not in sys.argv)


if __name__ == "__main__":
    main()
