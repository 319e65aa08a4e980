"""The engine's whole state as bytes and back, equal bit for bit. No code is ever loaded from it."""

from collections import deque
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from safetensors.numpy import load, save

from coterie.errors import CoterieError, FileError
from coterie.policies import Policy
from coterie.policies.cab import Engine as Shards
from coterie.service.engine import Engine, Kind, User, make_policy
from coterie.service.events import Event
from coterie.service.settings import Config
from coterie.service.statistics import KEPT, Minute

VERSION = 1


class Model(Struct, frozen=True):
    """One policy: how much it learned, and its arrays as safetensors."""

    learned: int
    tensors: bytes


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


_encoder = msgspec.msgpack.Encoder()


def dump(engine: Engine) -> bytes:
    """Return the engine's state."""
    return _encoder.encode(
        State(
            version=VERSION,
            position=engine.position,
            now=engine.now,
            config=engine.config,
            next_user=engine.next_user,
            users=list(engine.users.values()),
            known_items=list(engine.known_items),
            events=list(engine.events.values()),
            minutes=list(engine.statistics.minutes),
            total=engine.statistics.total,
            items=_model(engine.items),
            vectors=_model(engine.vectors),
            contract=engine.contract,
            model=_model(engine.model),
        )
    )


def restore(data: bytes, shards: Shards | None = None) -> Engine:
    """Return the engine that `dump` wrote; its names come from the store's table."""
    try:
        version = msgspec.msgpack.decode(data, type=_Version).version
        if version != VERSION:
            raise FileError(
                f"the snapshot has format version {version}, this coterie reads version {VERSION}; "
                "start with the coterie that wrote it"
            )
        state = msgspec.msgpack.decode(data, type=State)
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
    engine.items = _policy(state.items, state.config, "items", shards)
    engine.vectors = _policy(state.vectors, state.config, "vectors", shards)
    engine.model = _policy(state.model, state.config, "model", shards)
    return engine


class _Version(Struct):
    version: int


def _model(policy: Policy | None) -> Model | None:
    if policy is None or not policy.learned:
        return None  # a policy is made on first use, and one that learned nothing is as good as none
    tensors = {name: np.ascontiguousarray(value) for name, value in policy.tensors().items()}
    return Model(policy.learned, save(tensors))


def _policy(model: Model | None, config: Config, kind: Kind, shards: Shards | None) -> Policy | None:
    if model is None:
        return None
    policy = make_policy(config, kind, shards)
    try:
        policy.restore(load(model.tensors))
    except CoterieError:
        raise
    except Exception as error:  # safetensors raises its own kinds
        raise FileError(f"the snapshot's model cannot be read: {error}") from error
    policy.learned = model.learned
    return policy
