"""The engine's whole state as bytes and back, equal bit for bit. No code is ever loaded from it."""

import math
from collections import deque
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from safetensors.numpy import load, save

from coterie.errors import CoterieError, FileError
from coterie.models.files import Tensors
from coterie.policies import Policy
from coterie.policies.cab import Engine as Shards
from coterie.service.engine import Engine, Kind, User, make_policy
from coterie.service.events import Event
from coterie.service.pieces import PIECE
from coterie.service.settings import Config
from coterie.service.statistics import KEPT, Minute

VERSION = 1
TRAILER = b"coterie-snapshot-with-large-arrays-1"  # how a state ends that begins with large arrays


class Large(Struct, frozen=True):
    """Where an array stands that is too large to be among the others."""

    dtype: str
    shape: list[int]
    start: int


class Model(Struct, frozen=True, omit_defaults=True):
    """One policy: how much it learned, its arrays as safetensors, and where its large ones stand."""

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
    users: list[User]
    known_items: list[str]
    events: list[Event]
    minutes: list[Minute]
    total: Minute
    items: Model | None
    vectors: Model | None
    contract: dict[str, Any] = {}
    model: Model | None = None


class Frozen(NamedTuple):
    """A state that no longer changes: all but the models, and what these learned, as arrays of their own."""

    state: State
    models: dict[str, tuple[int, Tensors]]


_encoder = msgspec.msgpack.Encoder()
_raw = msgspec.msgpack.Decoder(msgspec.Raw)


def dump(engine: Engine) -> bytes:
    """Return the engine's state."""
    return pack(freeze(engine))


def freeze(engine: Engine) -> Frozen:
    """Return the engine's state as it is now; `pack` may take its time with it, in another thread."""
    state = State(
        version=VERSION,
        position=engine.position,
        now=engine.now,
        config=engine.config,
        next_user=engine.next_user,
        users=_still(list(engine.users.values())),
        known_items=list(engine.known_items),
        events=_still(list(engine.events.values())),
        minutes=_still(list(engine.statistics.minutes)),
        total=_still(engine.statistics.total),
        items=None,
        vectors=None,
        contract=dict(engine.contract),
    )
    # A policy is made on first use, and one that learned nothing is as good as none.
    learned = {kind: policy for kind, policy in engine.policies().items() if policy.learned}
    return Frozen(state, {kind: (policy.learned, policy.tensors()) for kind, policy in learned.items()})


def _still(value: Any) -> Any:
    """Return something encoded, so that later changes do not show."""
    return _raw.decode(_encoder.encode(value))


def pack(frozen: Frozen) -> bytes:
    """Return a frozen state as bytes: MessagePack, or where arrays are large, these first, then MessagePack.

    Large arrays begin at multiples of a piece, so that the pieces of what did not change stay the same.
    """
    body: list[bytes] = []
    models: dict[str, Model] = {}
    size = 0
    for kind, (learned, tensors) in frozen.models.items():
        small: Tensors = {}
        large: dict[str, Large] = {}
        for name, tensor in tensors.items():
            array = np.ascontiguousarray(tensor)
            if array.nbytes < PIECE:
                small[name] = array
                continue
            large[name] = Large(array.dtype.str, list(array.shape), size)
            body += [array.tobytes(), bytes(-array.nbytes % PIECE)]
            size += array.nbytes + -array.nbytes % PIECE
        models[kind] = Model(learned, save(small), large)
    head = _encoder.encode(msgspec.structs.replace(frozen.state, **models))
    if not body:
        return head
    return b"".join([*body, head, len(head).to_bytes(8, "little"), TRAILER])


def restore(data: bytes, shards: Shards | None = None) -> Engine:
    """Return the engine that `dump` wrote; its names come from the store's table."""
    head = data
    if data.endswith(TRAILER):
        end = len(data) - len(TRAILER) - 8
        head = data[end - int.from_bytes(data[end : end + 8], "little") : end]
    try:
        version = msgspec.msgpack.decode(head, type=_Version).version
        if version != VERSION:
            raise FileError(
                f"the snapshot has format version {version}, this coterie reads version {VERSION}; "
                "start with the coterie that wrote it"
            )
        state = msgspec.msgpack.decode(head, type=State)
    except msgspec.MsgspecError as error:
        raise FileError(f"the snapshot cannot be read: {error}") from error
    engine = Engine(shards)
    engine.position, engine.now, engine.config = state.position, state.now, state.config
    engine.contract = state.contract
    engine.next_user = state.next_user
    engine.users = {user.number: user for user in state.users}
    engine.known_items = dict.fromkeys(state.known_items)
    engine.statistics.minutes = deque(state.minutes, maxlen=KEPT)
    engine.statistics.total = state.total
    engine.take_events(state.events)
    engine.items = _policy(state.items, data, state.config, "items", shards)
    engine.vectors = _policy(state.vectors, data, state.config, "vectors", shards)
    engine.model = _policy(state.model, data, state.config, "model", shards)
    return engine


class _Version(Struct):
    version: int


def _policy(
    model: Model | None, data: bytes, config: Config, kind: Kind, shards: Shards | None
) -> Policy | None:
    if model is None:
        return None
    policy = make_policy(config, kind, shards)
    try:
        policy.restore({**load(model.tensors), **_large(model, data)})
    except CoterieError:
        raise
    except Exception as error:  # safetensors raises its own kinds
        raise FileError(f"the snapshot's model cannot be read: {error}") from error
    policy.learned = model.learned
    return policy


def _large(model: Model, data: bytes) -> Tensors:
    found = {}
    for name, large in model.large.items():
        flat = np.frombuffer(data, np.dtype(large.dtype), math.prod(large.shape), large.start)
        found[name] = flat.reshape(large.shape).copy()  # policies change their arrays in place
    return found
