"""The bandit's whole state as bytes and back, equal bit for bit. No code is ever loaded from it.

A state has a head and parts: blocks of users and of events, and pieces of the models. `Copy` takes the parts one at a
time while the bandit works on, each as it was when the copy began, and leaves out those of the last snapshot.
"""

import math
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from copy import deepcopy
from functools import partial
from itertools import islice
from typing import Any, final

import msgspec
import numpy as np
from msgspec import Struct
from safetensors.numpy import load, save

from coterie.data.logs.records import Kind
from coterie.data.logs.rules import Config
from coterie.errors import CoterieError, FileError
from coterie.models.files import Tensors
from coterie.models.parts import Parts
from coterie.policies import Policy
from coterie.policies.cab import Engine
from coterie.service.core.bandit import Bandit
from coterie.service.core.budget import Spending
from coterie.service.core.events import Event
from coterie.service.core.guardrails import Guards
from coterie.service.core.policies import Policies
from coterie.service.core.remembered import User
from coterie.service.core.statistics import KEPT, Minute
from coterie.service.log import pieces
from coterie.service.log.pieces import PIECE
from coterie.service.trial.assignment import challenger_of
from coterie.service.trial.lift import Trial

VERSION = 3
RIVAL = "rival."
Named = dict[str, dict[str, bytes]]  # source, part, and its content or the name of a piece


class Large(Struct, frozen=True):
    """An array whose content is in parts."""

    dtype: str
    shape: list[int]


class Model(Struct, frozen=True, omit_defaults=True):
    """One policy: how much it learned, its small arrays as safetensors, and types and shapes of its large ones."""

    learned: int
    tensors: bytes
    large: dict[str, Large] = {}


class State(Struct, frozen=True, omit_defaults=True):
    """All that the log says, up to a position."""

    version: int
    position: int
    now: int
    config: Config
    next_user: int
    sights: int
    total: Minute
    models: dict[Kind, Model]
    parts: Named
    contract: dict[str, Any] = {}
    secret: bytes = b""
    removed: tuple[int, int] = (0, 0)  # events that were removed before their wait had ended, and when
    jumped: int = 0  # how far the time of day has jumped so far, milliseconds
    trial: Trial | None = None
    spending: Spending | None = None
    guards: Guards | None = None  # None where no reward had a part and there is no guardrail
    rival: dict[Kind, Model] = {}  # of the challenger; its parts are among the others, under RIVAL


_encoder = msgspec.msgpack.Encoder()
_users = msgspec.msgpack.Decoder(list[User])
_events = msgspec.msgpack.Decoder(list[Event])


@final
class Whole:
    """Parts that are copied when they are made."""

    def __init__(self, parts: Mapping[str, bytes]) -> None:
        self._parts = dict(parts)

    def keys(self) -> list[str]:
        return list(self._parts)

    def part(self, key: str) -> bytes:
        return bytes(self._parts[key])

    def make_room(self) -> None:
        """Do nothing."""

    def begin(self, kept: Container[str]) -> list[str]:
        """Return all: those that did not change have the same hash."""
        return list(self._parts)

    def take(self, key: str) -> bytes:
        return bytes(self._parts.pop(key))

    def end(self, kept: bool) -> None:
        """Do nothing."""


@final
class Copy:
    """The state at the moment of the call; pieces named in `there` need not be taken again."""

    def __init__(self, bandit: Bandit, there: Container[bytes] = ()) -> None:
        self._engine = bandit
        self._state, self._sources = _head(bandit)
        self._names: Named = {}
        self._wanted: list[tuple[str, str]] = []
        for source, parts in self._sources.items():
            kept = {key: name for key, name in bandit.kept.get(source, {}).items() if name in there}
            self._names[source] = {key: kept.get(key, b"") for key in parts.keys()}  # noqa: SIM118
            self._wanted += [(source, key) for key in parts.begin(kept)]

    @property
    def position(self) -> int:
        """The position of the state in the log."""
        return self._state.position

    def parts(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield source, key and content of the parts to be written; the bandit may work between two of them."""
        for source, key in self._wanted:
            yield source, key, self._sources[source].take(key)

    def keep(self, source: str, key: str, name: bytes) -> None:
        """Say which piece holds a part."""
        self._names[source][key] = name

    def row(self) -> bytes:
        """Return the snapshot: the head, and the names of all pieces."""
        return pieces.PARTS + _encoder.encode(msgspec.structs.replace(self._state, parts=self._names))

    def end(self, kept: bool) -> None:
        """End the copy, and say whether the snapshot was kept."""
        for parts in self._sources.values():
            parts.end(kept)
        if kept:
            self._engine.kept = self._names


def prepare(bandit: Bandit) -> None:
    """Allocate memory for a copy, in another thread, so that the event loop need not wait for it."""
    for model in bandit.models:
        for policy in model.made.values():
            for parts in policy.parts().values():
                parts.make_room()


def dump(bandit: Bandit) -> bytes:
    """Return the bandit's state in one value; two bandits with the same value behave alike from then on."""
    state, sources = _head(bandit)
    found: Named = {}
    for source, parts in sources.items():
        found[source] = {key: parts.part(key) for key in sorted(parts.keys(), key=_order)}
    # For each user the place in the order in which users are dropped.
    turns = {number: turn for turn, number in enumerate(bandit.users, 1)}
    for key in found["users"]:
        found["users"][key] = bandit.remembered.encode_users(int(key), turns)
    return _encoder.encode(msgspec.structs.replace(state, parts=found, sights=len(bandit.users)))


def _order(key: str) -> tuple[str, int]:
    name, _, number = key.rpartition("/")
    return name, int(number)


def _head(bandit: Bandit) -> tuple[State, dict[str, Parts]]:
    """Return the state without its parts, and where these come from."""
    sources: dict[str, Parts] = {
        "users": bandit.remembered.user_parts,
        "events": bandit.remembered.event_parts,
        "waits": bandit.remembered.waits.parts,
        "minutes": Whole({"0": _encoder.encode(list(bandit.statistics.minutes))}),
    }
    models = _apart(bandit.policies, "", sources)
    rival = {} if bandit.challenger is None else _apart(bandit.challenger, RIVAL, sources)
    state = State(
        version=VERSION,
        position=bandit.position,
        now=bandit.now,
        config=bandit.config,
        next_user=bandit.next_user,
        sights=bandit.remembered.sights,
        total=deepcopy(bandit.statistics.total),
        models=models,
        parts={},
        contract=dict(bandit.contract),
        secret=bandit.secret,
        removed=(bandit.remembered.removed, bandit.remembered.removed_at),
        jumped=bandit.jumped,
        trial=deepcopy(bandit.trial),
        guards=None if bandit.guards == Guards() else deepcopy(bandit.guards),
        spending=None if bandit.spending is None else msgspec.structs.replace(bandit.spending),
        rival=rival,
    )
    return state, sources


def _apart(policies: Policies, prefix: str, sources: dict[str, Parts]) -> dict[Kind, Model]:
    """Return the heads of some policies, and add their parts to `sources`."""
    sources[f"{prefix}known_items"] = Whole({"0": _encoder.encode(list(policies.known_items))})
    models: dict[Kind, Model] = {}
    for kind, policy in sorted(policies.made.items()):
        if policy.learned:  # one that learned nothing is made again on first use
            models[kind], parts = _taken_apart(policy)
            sources |= {f"{prefix}{kind}.{name}": part for name, part in parts.items()}
    return models


def _taken_apart(policy: Policy) -> tuple[Model, dict[str, Parts]]:
    """Return a policy's head and its parts. The large arrays of the head are copied now and compared later."""
    small: Tensors = {}
    large: dict[str, Large] = {}
    cut: dict[str, bytes] = {}
    for name, tensor in policy.head().items():
        array = np.ascontiguousarray(tensor)
        if array.nbytes < PIECE:
            small[name] = array
            continue
        large[name] = Large(array.dtype.str, list(array.shape))
        flat: Any = array.reshape(-1).view(np.uint8)
        starts = range(0, len(flat), PIECE)
        cut |= {f"{name}/{k}": flat[start : start + PIECE] for k, start in enumerate(starts)}
    return Model(policy.learned, save(small), large), {"arrays": Whole(cut), **policy.parts()}


def restore(row: bytes, engine: Engine | None = None, find: pieces.Find | None = None) -> Bandit:
    """Return the bandit that a dump or a snapshot holds; its names come from the store's table.

    `find` returns pieces by name. Raises DamagedError if one is missing or not what was written.
    """
    by_name = row.startswith(pieces.PARTS)
    body = row[len(pieces.PARTS) :] if by_name else row
    try:
        version = msgspec.msgpack.decode(body, type=_Version).version
        if version != VERSION:
            raise FileError(
                f"the snapshot has format version {version}, this coterie reads version {VERSION}; start with the "
                "coterie that wrote it"
            )
        state = msgspec.msgpack.decode(body, type=State)
        return _restore(state, engine, find if by_name else None)
    except msgspec.MsgspecError as error:
        raise FileError(f"the snapshot cannot be read: {error}") from error


class _Version(Struct):
    version: int


def _restore(state: State, engine: Engine | None, find: pieces.Find | None) -> Bandit:
    def read(source: str) -> Iterator[bytes]:
        parts = state.parts.get(source, {})
        for key in sorted(parts, key=_order):
            yield parts[key] if find is None else pieces.get(parts[key], find)

    bandit = Bandit(engine)
    bandit.position, bandit.now, bandit.jumped = state.position, state.now, state.jumped
    bandit.contract, bandit.secret = state.contract, state.secret
    bandit.trial, bandit.spending, bandit.guards = state.trial, state.spending, state.guards or Guards()
    bandit.next_user = state.next_user
    users = [user for block in read("users") for user in _users.decode(block)]
    bandit.remembered.take_users(sorted(users, key=lambda user: user.seen), state.sights)
    events = [event for block in read("events") for event in _events.decode(block)]
    bandit.remembered.read_events(sorted(events, key=lambda event: event.position), read("waits"))
    bandit.remembered.removed, bandit.remembered.removed_at = state.removed
    bandit.remembered.mark_none()
    minutes = msgspec.msgpack.decode(b"".join(read("minutes")), type=list[Minute])
    bandit.statistics.minutes = deque(minutes, maxlen=KEPT)
    bandit.statistics.total = state.total

    def put(config: Config, models: dict[Kind, Model], prefix: str) -> Policies:
        made = Policies(config, engine)
        names = msgspec.msgpack.decode(b"".join(read(f"{prefix}known_items")), type=list[str])
        made.known_items = dict.fromkeys(names)
        for kind, model in models.items():
            start = f"{prefix}{kind}."
            parts = {name.removeprefix(start): read(name) for name in state.parts if name.startswith(start)}
            _put_policy(made, kind, model, partial(_read_parts, model, parts))
        return made

    bandit.policies = put(state.config, state.models, "")
    other = challenger_of(state.config)
    bandit.challenger = None if other is None else put(other, state.rival, RIVAL)
    bandit.kept = {} if find is None else state.parts
    return bandit


def _put_policy(policies: Policies, kind: Kind, model: Model, restore: Callable[[Policy], None]) -> None:
    """Make a policy, which `restore` fills."""
    policy = policies.of(kind)
    try:
        restore(policy)
    except pieces.DamagedError:
        raise
    except CoterieError as error:
        if not isinstance(error, FileError):
            raise
        raise pieces.DamagedError(f"the model of the snapshot cannot be used: {error}") from error
    except Exception as error:  # safetensors raises its own kinds
        raise pieces.DamagedError(f"the model of the snapshot cannot be read: {error}") from error
    policy.learned = model.learned


def _read_parts(model: Model, parts: Mapping[str, Iterator[bytes]], policy: Policy) -> None:
    head = {**load(model.tensors), **_large(model, parts.get("arrays", iter(())))}
    policy.restore_parts(head, parts)


def _large(model: Model, arrays: Iterator[bytes]) -> Tensors:
    found: Tensors = {}
    for name in sorted(model.large):  # in the order of `_order`
        large = model.large[name]
        size = math.prod(large.shape) * np.dtype(large.dtype).itemsize
        whole = b"".join(islice(arrays, -(-size // PIECE)))
        # Policies change their arrays in place.
        found[name] = np.frombuffer(whole, np.dtype(large.dtype)).reshape(large.shape).copy()
    return found
