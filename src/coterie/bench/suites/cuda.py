"""Users' models on a GPU: what decisions, shared payoffs and joint rounds cost, beside memory speed and one core.

Times on the device are by the clock, from numbers on the host to numbers on the host (see `bench.device`).
One core is processor time of all threads, with fewer users, scaled up: a decision there grows with their number.
"""

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from coterie.bench.measuring import Measured, at_most, best_of, no_limit
from coterie.errors import MissingExtraError
from coterie.models import make_models
from coterie.models.files import pack_ids

SUITE = "cuda"
ONE_CORE = 50_000  # users of the models in this process


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Measure a million users and ten million on the first GPU, and many runs side by side."""
    if find_spec("jax") is None:
        raise MissingExtraError("this needs jax: pip install 'coterie[gpu]', and 'jax[cuda13]' for the GPU")
    from coterie.bench import device as measure
    from coterie.engines.device import find_device

    gpu = find_device(None)
    on_progress("one core")
    core = one_core(2_000 if quick else ONE_CORE)
    for cost in measure.costs(gpu, measure.QUICK if quick else measure.Amounts(), on_progress):
        value = 1e3 * cost.seconds
        against = "" if cost.limit is None else f"{1e3 * cost.limit:g} ms"
        keeps = no_limit(1.0) if cost.limit is None or quick else at_most(1, cost.seconds / cost.limit)
        name = f"{cost.name} ({cost.note})" if cost.note else cost.name
        yield Measured(SUITE, name, value, "ms", against, **keeps)
        if cost.memory is not None:
            yield Measured(
                SUITE, f"{cost.name}: over memory speed", value, "ms",
                f"{1e3 * cost.memory:.3g} ms, at memory speed", **no_limit(cost.seconds / cost.memory),
            )  # fmt: skip
        what = cost.name.partition(",")[0] if "batches" not in cost.name else "batches"
        if cost.users is not None and what in core:
            alone = core[what] * cost.users
            yield Measured(
                SUITE, f"{cost.name}: one core over the device", value, "ms", f"{1e3 * alone:.4g} ms, one core",
                **no_limit(alone / cost.seconds),
            )  # fmt: skip


def one_core(users: int) -> dict[str, float]:
    """Return seconds per user on one core, of a decision, one of a batch, and a payoff that everybody learns."""
    from coterie.bench.device import BATCH, CANDIDATES, FEATURES, SCALE, learned, vectors
    from coterie.engines.device import as_tensors

    rng = np.random.default_rng(1)
    models: Any = make_models(FEATURES, one_hot=False)
    arrays = as_tensors(learned(np.random.default_rng(0), users))
    models.put({"updated": pack_ids(range(users)), "idle": pack_ids([]), **arrays})
    shown = [models.read(vectors(rng, CANDIDATES)) for _ in range(BATCH)]
    asking = list(range(BATCH))

    def decide(count: int) -> None:
        models.look_many(asking[:count], shown[:count], SCALE)

    def share() -> None:
        view = models.view(0, shown[0][:1])
        models.share(0, shown[0][0], 0.5, view, 100.0, np.inf)

    decide(1)  # compiles
    share()
    return {
        "a decision": best_of(5, lambda: decide(1), time.process_time) / users,
        "batches": best_of(2, lambda: decide(BATCH), time.process_time) / BATCH / users,
        "a payoff that all users learn": best_of(3, share, time.process_time) / users,
    }


def machine() -> dict[str, Any]:
    """Return what a reader needs to place the numbers: the GPU and JAX."""
    from coterie.bench import device as measure
    from coterie.engines.device import find_device

    return measure.machine(find_device(None))
