"""RAN: a candidate uniformly at random, the baseline of every comparison."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import compress
from typing import final

import numpy as np

from coterie.models import make_models
from coterie.models.actions import ActionLike, ActionsLike
from coterie.models.batches import names_of
from coterie.models.checks import read_payoff
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.policies.base.batch import Batch, Outcome, read_batch
from coterie.policies.base.decision import Decision
from coterie.policies.base.parameters import Seed, make_rng
from coterie.policies.base.policy import Policy


@final
@dataclass(kw_only=True, eq=False, repr=False)
class Random(Policy):
    """Learns nothing and picks uniformly.

    n_features, one_hot and seed are as in every `Policy`. Raises ParameterError if a setting is not valid.

    >>> Random(one_hot=True).decide("ann", ["jazz", "news"]).probability
    array([0.5, 0.5])
    """

    name = "random"
    reference = "the paper's RAN"

    n_features: int | None = None
    one_hot: bool = False
    seed: Seed = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = make_rng(self.seed)
        self.models = make_models(self.n_features, self.one_hot)  # checks contexts; it stays empty

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Give every candidate the same probability."""
        contexts = self.models.read(contexts)
        n = len(contexts)
        return Decision(user, contexts, np.zeros(n), np.full(n, 1 / n))

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Register the user, and learn nothing else."""
        self.models.read([context])
        read_payoff(payoff)
        self._known.setdefault(user)
        self.learned += 1
        return 0

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds, all choices at once."""
        candidates, _, served = read_batch(batch)
        self.models.read(batch.items)
        n, width = candidates.shape
        choice = np.zeros(n, dtype=np.int64)
        if width > 1:  # as `draw` does
            reached = np.cumsum(np.full(width, 1 / width))
            choice = np.minimum(np.searchsorted(reached, self.rng.random(n), side="right"), width - 1)
        kept = (served < 0) | (choice == served)
        users = names_of(batch.users)
        self._known |= dict.fromkeys(compress(users, kept.tolist()))
        self.learned += int(kept.sum())
        return Outcome(choice, kept, np.ones(n, dtype=np.int64), np.zeros(n, dtype=np.int64))

    def drop_item(self, item: Hashable) -> None:
        """Do nothing: nothing is learned about items."""
        if not self.one_hot:
            super().drop_item(item)
        self.models.read([item])

    def tensors(self) -> Tensors:
        """Return the known users."""
        return {"known": pack_ids(self._known)}

    def restore(self, tensors: Tensors) -> None:
        self._known = dict.fromkeys(unpack_ids(tensors, "known"))
