"""RAN, the yardstick."""

from typing import Any

import numpy as np
import pytest

from coterie import Random
from tests.playing import run_equals_one_by_one


@pytest.mark.parametrize("one_hot", [False, True], ids=["vectors", "items"])
def test_all_scores_at_once_are_the_scores_one_by_one(one_hot: bool) -> None:
    def make() -> Any:
        return Random(one_hot=True, seed=3) if one_hot else Random(n_features=4, seed=3)

    run_equals_one_by_one(make, one_hot, seed=1)


def test_random_picks_every_candidate_equally_often() -> None:
    policy = Random(one_hot=True, seed=5)
    picks = np.bincount([policy.choose("ann", ["a", "b", "c", "d"]) for _ in range(2000)])
    assert picks.min() > 430
