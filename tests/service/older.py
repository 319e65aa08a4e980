"""Writes snapshots as the first versions did: the whole state in one value, or in pieces of 1 MB."""

from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save

from coterie.service.core.bandit import Bandit
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.snapshots import pieces, snapshot_v1
from coterie.service.snapshots.pieces import PIECE


def dump(bandit: Bandit) -> bytes:
    """Return the state of a bandit as version 1 wrote it."""
    body: list[bytes] = []
    models: dict[str, Any] = {"items": None, "vectors": None, "model": None}
    for kind, policy in bandit.policies.made().items():
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
        position=bandit.position,
        now=bandit.now,
        config=bandit.config,
        next_user=bandit.next_user,
        users=list(bandit.users.values()),
        known_items=list(bandit.policies.known_items),
        events=list(bandit.events.values()),
        minutes=list(bandit.statistics.minutes),
        total=bandit.statistics.total,
        contract=bandit.contract,
        **models,
    )
    fields = msgspec.to_builtins(state, builtin_types=(bytes,))
    fields["users"] = [row[:6] for row in fields["users"]]  # they were not numbered by sight
    head = msgspec.msgpack.encode(fields)
    if not body:
        return head
    return b"".join([*body, head, len(head).to_bytes(8, "little"), snapshot_v1.TRAILER])


def save_pieces(store: SqliteStore, bandit: Bandit) -> None:
    """Keep a snapshot as store version 2 did."""
    state = dump(bandit)
    cut = [state[start : start + PIECE] for start in range(0, len(state), PIECE)]
    store.save_pieces({pieces.name_of(piece): piece for piece in cut})
    store.save_snapshot(bandit.position, pieces.MANIFEST + b"".join(map(pieces.name_of, cut)))
    store._write.execute("PRAGMA user_version = 2")
