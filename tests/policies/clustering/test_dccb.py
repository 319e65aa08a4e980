"""DCCB: by hand, against a network of peers with full matrices, and what gossip conserves."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import FileError, ParameterError
from coterie.models.files import PolicyState, read_file, write_file
from coterie.models.rows.gossip import Buffers, WaitingPayoff
from coterie.policies import DCCB, LinUCB
from tests.naive import NaiveDCCB
from tests.playing import agree
from tests.worlds import World, make_world


def played(policy: DCCB, world: World, n_rounds: int, seed: int) -> DCCB:
    rng = np.random.default_rng(seed)
    for _ in range(n_rounds):
        u, i = int(rng.integers(len(world.users))), int(rng.integers(len(world.items)))
        payoff = float(rng.random() < np.clip(world.taste[u] @ world.items[i], 0, 1))
        policy.learn(world.users[u], i if world.one_hot else world.items[i], payoff)
    return policy


def test_two_peers_by_hand() -> None:
    """d = 1, x = 1, no delay, nobody parts; each of two sharers counts double.

    Ann pays 1: her shared statistics are (1, 1), times 2: M = 1 + 2, b = 2, estimate 2/3; bob has heard nothing.
    Bob pays 0: first they average to (1/2, 1/2), then bob's payoff makes his (3/2, 1/2): ann expects 1/(1 + 1) = 1/2,
    bob 1/(1 + 3) = 1/4. Before the third payoff they average to (1, 1/2), and bob expects 1/3: the pooled estimate.
    """
    policy = DCCB(n_features=1, alpha=0.5, alpha2=9.0, delay=0.0)
    policy.add("ann")
    policy.add("bob")
    policy.learn("ann", [1.0], 1.0)
    assert [policy.explain(u, [[1.0]]).near_estimate[0] for u in ("ann", "bob")] == pytest.approx([2 / 3, 0])
    policy.learn("bob", [1.0], 0.0)
    assert [policy.explain(u, [[1.0]]).near_estimate[0] for u in ("ann", "bob")] == pytest.approx(
        [1 / 2, 1 / 4]
    )
    policy.learn("ann", [1.0], 1.0)
    told = policy.explain("bob", [[1.0]])
    assert told.near_estimate[0] == pytest.approx(1 / 3)
    assert told.near_width[0] == pytest.approx(0.5 * math.sqrt(math.log(5) / 3))
    assert told.members.tolist() == [2]
    assert told.estimate[0] == 0  # his own payoff was 0


def test_payoffs_travel_before_they_count() -> None:
    """Two peers, delay = 1: ⌈log₂(2^1.5·t)⌉ = 2, 3, 4, 4, 4 payoffs wait at most, so the first counts after round 5.

    By then it has been averaged four times, between two peers: each has half of it.
    """
    policy = DCCB(n_features=1, alpha2=9.0, delay=1.0)
    policy.add("ann")
    policy.add("bob")
    for t in range(5):
        assert policy.explain("ann", [[1.0]]).near_estimate[0] == 0
        policy.learn("ann", [1.0], 1.0 if t == 0 else 0.0)
    for user in ("ann", "bob"):
        assert policy.explain(user, [[1.0]]).near_estimate[0] == pytest.approx(1 / 2)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(
    ("seed", "alpha", "alpha2", "delay"), [(1, 0.1, 1.0, 4.0), (2, 0.4, 0.4, 1.0), (3, 0.05, 0.6, 0.0)]
)
def test_equal_to_the_twin(one_hot: bool, seed: int, alpha: float, alpha2: float, delay: float) -> None:
    world = make_world(seed, n_users=9, d=4, n_items=8, n_clusters=2, one_hot=one_hot)
    kind: dict[str, Any] = {"one_hot": True} if one_hot else {"n_features": 4}
    policy = DCCB(alpha=alpha, alpha2=alpha2, delay=delay, seed=seed, **kind)
    twin = NaiveDCCB(8 if one_hot else 4, alpha, alpha2, delay, seed)

    def local_clusters_are_equal(t: int) -> None:
        if t % 25 == 0:
            for row, user in enumerate(policy.users):
                parted = {other for j, other in enumerate(policy.users) if policy._parted[row] >> j & 1}
                assert parted == twin.peers[user].strangers

    agree(policy, twin, world.visits(300, seed), after=local_clusters_are_equal)
    assert any(policy._parted)


def test_one_peer_without_delay_is_linucb() -> None:
    world = make_world(5, n_users=1, d=3, n_items=9, n_clusters=1, one_hot=False)
    mine, other = DCCB(n_features=3, alpha=0.4, delay=0.0), LinUCB(n_features=3, alpha=0.4)
    rng = np.random.default_rng(5)
    for _ in range(100):
        contexts = world.items[rng.permutation(9)[:4]]
        a, b = mine.explain("u0", contexts), other.explain("u0", contexts)
        assert a.score == pytest.approx(b.score, abs=1e-10)
        payoff = float(rng.uniform(-1, 1))
        for policy in (mine, other):
            policy.learn("u0", contexts[a.choice], payoff)


@pytest.mark.parametrize("one_hot", [False, True])
def test_gossip_loses_nothing_and_doubles_nothing(one_hot: bool) -> None:
    """As long as nobody parts, shared statistics and buffers of all peers sum to their local ones."""
    kind: dict[str, Any] = {"one_hot": True} if one_hot else {"n_features": 3}
    world = make_world(6, n_users=7, d=3, n_items=5, n_clusters=2, one_hot=one_hot)
    policy = played(DCCB(alpha2=100.0, delay=0.7, **kind), world, 120, 6)
    total = [shared.rows.sum(axis=0) for shared in policy._shared]
    for (column, payoff), share in zip(policy._buffers.payoffs, policy._buffers.shares, strict=True):
        gram, moment = np.zeros((1, len(total[0]))), np.zeros((1, len(total[1])))
        policy.sums.add(gram, moment, share.sum(keepdims=True), column, payoff)
        total[0], total[1] = total[0] + gram[0], total[1] + moment[0]
    for found, local in zip(total, policy._local, strict=True):
        assert found == pytest.approx(local.sum(axis=0), abs=1e-9)


def test_buffers_are_a_queue_of_shares() -> None:
    """Against a plain list of (payoff, shares), with peers who come, go and start over."""
    rng = np.random.default_rng(9)
    buffers, plain = Buffers(), list[tuple[float, list[float]]]()
    peers = 0
    for t in range(600):
        if peers < 3 or (peers < 9 and rng.random() < 0.05):
            buffers.add_peer()
            plain = [(y, [*share, 0.0]) for y, share in plain]
            peers += 1
        elif peers > 3 and rng.random() < 0.03:
            gone = int(rng.integers(peers))
            buffers.drop_peer(gone)
            plain = [(y, share[:gone] + share[gone + 1 :]) for y, share in plain]
            plain = [(y, share) for y, share in plain if any(share)]
            peers -= 1
        meets = rng.permutation(peers)
        buffers.average(meets)
        plain = [(y, [(share[i] + share[meets[i]]) / 2 for i in range(peers)]) for y, share in plain]
        if rng.random() < 0.2:
            buffers.clear([0, 2])
            plain = [(y, [0.0 if i in (0, 2) else s for i, s in enumerate(share)]) for y, share in plain]
        share = (rng.random(peers) < 0.4).astype(float)
        buffers.put(WaitingPayoff(np.array([t]), float(t)), share)
        plain.append((float(t), share.tolist()))
        while len(plain) > 5 + t // 10:
            (column, payoff), found = buffers.pop()
            assert (column[0], payoff, found.tolist()) == (payoff, *plain.pop(0))
        assert [payoff for _, payoff in buffers.payoffs] == [y for y, _ in plain]
        assert buffers.shares.tolist() == [share for _, share in plain]
    assert len(plain) > 32  # more than fit at first


def test_local_weights_follow_local_statistics() -> None:
    world = make_world(7, n_users=5, d=3, n_items=6, n_clusters=2, one_hot=False)
    policy = played(DCCB(n_features=3), world, 100, 7)
    for row in range(5):
        assert policy._weights[row] == pytest.approx(
            policy.sums.weights(policy._local[0][row], policy._local[1][row])
        )


def test_planted_clusters_are_found_and_share() -> None:
    """Two opposite tastes: in the end local clusters are the planted ones, and a peer rests on its own kind."""
    policy = DCCB(n_features=2, alpha2=0.7, delay=1.0)
    rng = np.random.default_rng(8)
    for _ in range(1500):
        user = int(rng.integers(12))
        x = rng.normal(size=2)
        x /= np.linalg.norm(x)
        taste = np.array([1.0, 0.0]) if user % 2 else np.array([-1.0, 0.0])
        policy.learn(user, x, float(np.clip(taste @ x + rng.normal(0, 0.05), -1, 1)))
    for user in range(12):
        assert set(policy.neighbours(user, [1.0, 0.0])) == {
            other for other in range(12) if other % 2 == user % 2
        }
        told = policy.explain(user, [[1.0, 0.0]])
        assert told.members.tolist() == [6]
        assert told.near_estimate[0] == pytest.approx(1 if user % 2 else -1, abs=0.1)
        assert told.near_width[0] < told.width[0]  # surer than the user alone


def test_one_hot_peers_share_with_more_than_themselves() -> None:
    policy = DCCB(one_hot=True, alpha2=3.0, delay=0.5)
    world = make_world(9, n_users=6, d=0, n_items=4, n_clusters=1, one_hot=True)
    played(policy, world, 100, 9)
    assert policy.explain("u0", [0, 1]).members.tolist() == [6, 6]


def test_parted_peers_stay_parted(tmp_path: Path) -> None:
    policy = DCCB(n_features=1, alpha2=0.3, delay=0.0)
    for _ in range(10):
        policy.learn("ann", [1.0], 1.0)
        policy.learn("bob", [1.0], -1.0)
    assert policy.neighbours("ann", [1.0]) == ["ann"]
    for _ in range(300):
        policy.learn("bob", [1.0], 1.0)
    policy.save(tmp_path / "model")
    policy = DCCB.load(tmp_path / "model")
    policy.learn("cid", [1.0], 1.0)
    assert "bob" not in policy.neighbours("ann", [1.0])


def test_dropping_a_peer_moves_the_others_bits() -> None:
    policy = DCCB(n_features=1, alpha2=0.3, delay=0.0)
    for t in range(40):
        policy.learn("abcd"[t % 4], [1.0], 1.0 if t % 4 in (0, 3) else -1.0)
    assert set(policy.neighbours("d", [1.0])) == {"a", "d"}
    before = policy.explain("d", [[1.0]]).near_estimate[0]
    policy.drop("b")
    assert policy.users == ["a", "c", "d"]
    assert set(policy.neighbours("d", [1.0])) == {"a", "d"}
    assert policy.neighbours("c", [1.0]) == ["c"]
    assert policy.explain("d", [[1.0]]).near_estimate[0] == pytest.approx(before)
    assert policy.explain("b", [[1.0]]).estimate[0] == 0
    for user in "acd":
        policy.drop(user)
    assert all(tensor.size == 0 for name, tensor in policy.tensors().items() if name != "users")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    policy = DCCB(n_features=1, alpha2=0.3)
    for user, payoff in [("a", 1.0), ("b", -1.0)] * 5:
        policy.learn(user, [1.0], payoff)
    policy.save(tmp_path / "good")
    state = read_file(tmp_path / "good", "dccb")
    for name, value in [
        ("parted", np.array([[2], [0]], dtype=np.uint8)),
        ("parted", np.array([[1], [2]], dtype=np.uint8)),
        ("times", np.array([-1, 3])),
        ("waiting_share", -state.tensors["waiting_share"] - 1),
    ]:
        broken = PolicyState(state.parameters, state.progress, {**state.tensors, name: value})
        write_file(tmp_path / "bad", "dccb", broken)
        with pytest.raises(FileError, match="contradict"):
            DCCB.load(tmp_path / "bad")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha2": -1}, "alpha2 is -1, expected a finite number of at least 0"),
        ({"delay": math.inf}, "delay is inf, expected a finite number"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
)
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        DCCB(n_features=5, **given)
