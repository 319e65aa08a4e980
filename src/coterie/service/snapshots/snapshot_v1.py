"""Snapshots of the first version: the whole state in one value. They are read, and no longer written."""

import math
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from safetensors.numpy import load

from coterie.errors import FileError
from coterie.models.files import Tensors
from coterie.service.core.events import Event
from coterie.service.core.remembered import User
from coterie.service.figures.statistics import Minute
from coterie.service.settings import Config

TRAILER = b"coterie-snapshot-with-large-arrays-1"  # the end of a state that begins with large arrays


class Large(Struct, frozen=True):
    """An array that is too large to be among the others, and where it starts."""

    dtype: str
    shape: list[int]
    start: int


class Model(Struct, frozen=True):
    """One policy: how much it learned, its arrays as safetensors, and where its large ones are."""

    learned: int
    tensors: bytes
    large: dict[str, Large] = {}


class State(Struct, frozen=True):
    """All that the log says, up to a position; users unseen for longest first, events oldest first."""

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


def head(data: bytes) -> bytes:
    """Return the MessagePack of a state; large arrays may come before it."""
    if not data.endswith(TRAILER):
        return data
    end = len(data) - len(TRAILER) - 8
    return data[end - int.from_bytes(data[end : end + 8], "little") : end]


def read(data: bytes) -> State:
    """Return the state."""
    try:
        return msgspec.msgpack.decode(head(data), type=State)
    except msgspec.MsgspecError as error:
        raise FileError(f"the snapshot cannot be read: {error}") from error


def tensors(model: Model, data: bytes) -> Tensors:
    """Return the arrays of a policy."""
    found = load(model.tensors)
    for name, large in model.large.items():
        flat = np.frombuffer(data, np.dtype(large.dtype), math.prod(large.shape), large.start)
        found[name] = flat.reshape(large.shape).copy()  # policies change their arrays in place
    return found
