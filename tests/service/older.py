"""Writes snapshots as the first versions did: the whole state in one value, or in pieces of 1 MB."""

from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save

from coterie.service.core.engine import Engine
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.snapshots import pieces, snapshot_v1
from coterie.service.snapshots.pieces import PIECE


def dump(engine: Engine) -> bytes:
    """Return the state of an engine as version 1 wrote it."""
    body: list[bytes] = []
    models: dict[str, Any] = {"items": None, "vectors": None, "model": None}
    for kind, policy in engine.policies().items():
        small: dict[str, Any] = {}
        large: dict[str, snapshot_v1.Large] = {}
        for name, tensor in policy.tensors().items():
            array = np.ascontiguousarray(tensor)
            if array.nbytes < PIECE:
                small[name] = array
                continue
            large[name] = snapshot_v1.Large(array.dtype.str, list(array.shape), sum(map(len, body)))
            body += [array.tobytes(), bytes(-array.nbytes % PIECE)]
        models[kind] = snapshot_v1.Model(policy.learned, save(small), large)
    state = snapshot_v1.State(
        version=1,
        position=engine.position,
        now=engine.now,
        config=engine.config,
        next_user=engine.next_user,
        users=list(engine.users.values()),
        known_items=list(engine.known_items),
        events=list(engine.events.values()),
        minutes=list(engine.statistics.minutes),
        total=engine.statistics.total,
        contract=engine.contract,
        **models,
    )
    fields = msgspec.to_builtins(state, builtin_types=(bytes,))
    fields["users"] = [row[:6] for row in fields["users"]]  # they were not numbered by sight
    head = msgspec.msgpack.encode(fields)
    if not body:
        return head
    return b"".join([*body, head, len(head).to_bytes(8, "little"), snapshot_v1.TRAILER])


def save_pieces(store: SqliteStore, engine: Engine) -> None:
    """Keep a snapshot as store version 2 did."""
    state = dump(engine)
    cut = [state[start : start + PIECE] for start in range(0, len(state), PIECE)]
    store.save_pieces({pieces.name_of(piece): piece for piece in cut})
    store.save_snapshot(engine.position, pieces.MANIFEST + b"".join(map(pieces.name_of, cut)))
    store._write.execute("PRAGMA user_version = 2")
