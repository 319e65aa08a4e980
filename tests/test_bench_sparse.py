"""The sparse benchmark: what it counts, and what it says."""

import numpy as np

from coterie.bench.suites.sparse import Played, compared, contestants, held_bytes, play
from coterie.data import SparseWorld
from coterie.policies import CAB


def test_bytes_are_counted_once_whoever_refers_to_them() -> None:
    buffer = np.zeros(100)
    assert held_bytes({"a": [buffer, buffer[:10]], "b": buffer[5:]}) == 800
    policy = CAB(n_features=50)
    empty = held_bytes(policy)
    policy.learn("ann", np.eye(50)[0], 1.0)
    assert held_bytes(policy) >= empty + 8 * 50 * 51 / 2


def test_ratios_are_to_the_better_rival_and_keep_their_limits_or_not() -> None:
    world = SparseWorld(n_features=30, sparsity=2, n_users=4, clusters_per_family=2, n_candidates=5)
    played = contestants(world)
    play(played, world.rounds(10))
    assert all(one.policy.learned == 10 for one in played.values())
    for one, regret, seconds in zip(played.values(), (2.0, 5.0, 3.0), (1.0, 20.0, 2.0), strict=True):
        one.regret, one.seconds = regret, seconds
    rows = {row.name: row for row in compared(played, time_limit=0.1)}
    assert len(rows) == 9
    found = rows["regret of SparseCAB"]
    assert (found.against, found.ratio, found.holds) == ("LinUCB-MULTIPLE", 2 / 3, False)
    found = rows["time of SparseCAB"]
    assert (found.against, found.ratio, found.holds) == ("CAB", 0.05, True)
    assert rows["memory of CAB"].value == held_bytes(played["CAB"].policy) / 1e6


def test_a_policy_that_did_nothing_cost_nothing() -> None:
    one = Played(CAB(n_features=3))
    assert (one.regret, one.seconds) == (0.0, 0.0)
