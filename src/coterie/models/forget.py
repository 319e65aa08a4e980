"""Forgetting an item: removes what was learned about it from the arrays of a model over item ids."""

from collections.abc import Hashable, Iterable

import numpy as np

from coterie.arrays import Ints
from coterie.errors import ContextError
from coterie.models.files import Tensors, pack_ids, unpack_ids


def without_item(tensors: Tensors, item: Hashable, prefixes: Iterable[str] = ()) -> Tensors:
    """Return the arrays without an item: those of `OneHot`, and of rows with these prefixes (see `Means.tensors`)."""
    items = unpack_ids(tensors, "items")
    if item not in items:
        raise ContextError(f"item {item!r} is not known, so cannot be dropped")
    gone = items.index(item)
    kept = {**tensors, "items": pack_ids([*items[:gone], *items[gone + 1 :]])}
    for prefix in prefixes:
        kept |= _without_entries(tensors, prefix, gone)
    if "class_item" in tensors:
        kept |= _without_classes(tensors, gone)
    return kept


def _without_entries(tensors: Tensors, prefix: str, gone: int) -> Tensors:
    """Return rows without an item's entries."""
    row, item, count, total = (tensors[f"{prefix}_{name}"] for name in ("row", "item", "count", "total"))
    times, square = tensors[f"{prefix}_times"].copy(), tensors[f"{prefix}_square"]
    out, stays = item == gone, item != gone
    if count.dtype.kind == "i":  # with fading, counts are weights, not numbers of payoffs
        np.subtract.at(times, row[out], count[out])
    weight = total[stays] / (1 + count[stays])
    return {
        f"{prefix}_row": row[stays],
        f"{prefix}_item": _renumbered(item[stays], gone),
        f"{prefix}_count": count[stays],
        f"{prefix}_total": total[stays],
        f"{prefix}_square": np.bincount(row[stays], weight * weight, len(square)).astype(square.dtype),
        f"{prefix}_times": times,
    }


def _without_classes(tensors: Tensors, gone: int) -> Tensors:
    """Return the classes of users with equal histories, without those of an item."""
    class_item = tensors["class_item"]
    stays = class_item != gone
    number = np.cumsum(stays) - 1
    found: Tensors = {
        "class_item": _renumbered(class_item[stays], gone),
        "class_times": tensors["class_times"][stays],
        "class_total": tensors["class_total"][stays],
    }
    for name, beside in (("pair_class", "pair_user"), ("mark_class", "mark_until")):
        inside = stays[tensors[name]]
        found |= {name: number[tensors[name][inside]], beside: tensors[beside][inside]}
    return found


def _renumbered(item: Ints, gone: int) -> Ints:
    """Return item numbers without the gap."""
    return item - (item > gone)
