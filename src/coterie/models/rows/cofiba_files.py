"""COFIBA's rows in its files, which have full matrices, and number only the items that have data."""

from typing import Any

import numpy as np

from coterie.errors import FileError
from coterie.models.files import Tensors, pack_ids, take
from coterie.models.rows.ridge_rows import RidgeRows
from coterie.models.rows.ridges import Ridges, packing

PAIRS = {"row": "i", "item": "i", "count": "i", "total": "f"}  # the tensors of entries, and their types


def rows_as_tensors(rows: RidgeRows, n_rows: int) -> Tensors:
    """Return the first rows as arrays."""
    found = {name.removeprefix("_"): array for name, array in rows.tensors("", np.arange(n_rows)).items()}
    if isinstance(rows, Ridges):
        square = packing(rows.n_features)
        return {**found, "gram": found["gram"][:, square], "inverse": found["inverse"][:, square]}
    names, order = list(rows.items), np.argsort(found["item"], kind="stable")
    known, found["item"] = np.unique(found["item"], return_inverse=True)
    return {
        "touched_items": pack_ids(names[item] for item in known.tolist()),
        **{f"pair_{name}": found[name][order] for name in PAIRS},
    }


def read_rows(rows: RidgeRows, tensors: Tensors, n_rows: int) -> Any:
    """Return the `rows` that `rows_as_tensors` wrote, if they are consistent."""
    if isinstance(rows, Ridges):
        d, upper = rows.n_features, np.triu_indices(rows.n_features)
        full = {name: take(tensors, name, "f", (n_rows, d, d)) for name in ("gram", "inverse")}
        flat = {name: take(tensors, name, "f", (n_rows, d)) for name in ("moment", "weight")}
        # Older files have no `times`: each context has ‖x‖ ≤ 1, so there were at least Σ‖x‖² payoffs.
        least = np.ceil(np.einsum("nii->n", full["gram"])).astype(np.int64)
        found = {"times": tensors.get("times", least), **flat}
        found |= {name: array[:, upper[0], upper[1]] for name, array in full.items()}
    else:
        n = len(take(tensors, "pair_row", "i", (None,)))
        found = {name: take(tensors, f"pair_{name}", kind, (n,)) for name, kind in PAIRS.items()}
        row, count = found["row"], found["count"]
        if not ((row >= 0) & (row < n_rows) & (count >= 1)).all():
            raise FileError("the histories in the model file contradict each other")
        weight = found["total"] / (1 + count)
        found["square"] = np.bincount(row, weight * weight, n_rows)
        found["times"] = np.bincount(row, count, n_rows).astype(np.int64)
    prefixed = {f"user_{name}": array for name, array in found.items()}
    return rows.restore("user", {**prefixed, "items": tensors.get("touched_items", np.empty(0))}, n_rows)
