"""The paper's analysis as code: the hardness of data, and the bounds."""

from coterie.theory.bounds import (
    Terms,
    confidence,
    corollary_1,
    hardness_bound,
    lemma_1,
    lemma_2,
    regret_bound,
    theorem_1,
    theorem_3,
)
from coterie.theory.hardness import Hardness, hardness, one_hot_hardness
from coterie.theory.watching import WatchedRun, theory_alpha, watch

__all__ = [
    "Hardness", "Terms", "WatchedRun", "confidence", "corollary_1", "hardness", "hardness_bound", "lemma_1",
    "lemma_2", "one_hot_hardness", "regret_bound", "theorem_1", "theorem_3", "theory_alpha", "watch",
]  # fmt: skip
