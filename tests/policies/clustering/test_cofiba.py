"""COFIBA: by hand, against the paper's figure with sets and inverses, and the mistakes that are known of others."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import FileError, ParameterError
from coterie.models.files import PolicyState, read_file, write_file
from coterie.models.rows.layered_graph import LayeredGraph
from coterie.policies import COFIBA
from tests.naive import NaiveCOFIBA
from tests.playing import agree
from tests.twins.cofiba import component
from tests.worlds import make_world


def test_two_users_decide_together_and_part_by_hand() -> None:
    """One item, α = 0.5, α₂ = 0.3; ann and bob get an edge, since p = 3·log(2)/2 > 1.

    Ann pays 1: (times, total) = (1, 1), w = 1/2, spread 1/√2. t = 1: bob, at 0 ± 0.3·√log 2 = 0.25, and ann differ by
    0.5 > 0.25·(1 + 0.707) = 0.426, so the edge would go; with α₂ = 0.4 it is 0.568, and it stays. Then bob's pool is
    ann's and his own: estimate 1/2, bound 0.5·√(log 3/2).
    """
    for alpha2, together in [(0.3, False), (0.4, True)]:
        policy = COFIBA(one_hot=True, alpha=0.5, alpha2=alpha2)
        policy.add("ann")
        policy.add("bob")
        assert policy.learn("ann", "jazz", 1.0) == 1
        told = policy.explain("bob", ["jazz"])
        assert told.members.tolist() == [2 if together else 1]
        assert told.near_estimate[0] == pytest.approx(0.5 if together else 0.0)
        assert told.near_width[0] == pytest.approx(0.5 * math.sqrt(math.log(3) / (2 if together else 1)))
        assert told.estimate[0] == 0.0
        assert told.score == pytest.approx(told.near_estimate + told.near_width)
        assert set(policy.neighbours("bob", "jazz")) == ({"ann", "bob"} if together else {"bob"})


def test_an_item_leaves_when_it_divides_the_users_otherwise() -> None:
    """α₂ = 0: whoever differs, parts. Everybody agrees on both items until ann pays for jazz: there she is now alone,
    on news she agrees with bob still. So jazz leaves news, and takes a layer with all edges, or stays with its own.
    """
    policy = COFIBA(one_hot=True, alpha2=0.0)
    for user in ("ann", "bob"):
        policy.add(user)
    policy.learn("bob", "news", 0.0)  # all estimates stay 0: everybody agrees
    assert policy.item_clusters == [["news"]]
    policy.learn("ann", "jazz", 0.0)
    assert policy.item_clusters == [["news", "jazz"]]
    policy.learn("ann", "jazz", 1.0)
    assert sorted(policy.item_clusters) == [["jazz"], ["news"]]
    assert policy.neighbours("ann", "jazz") == ["ann"]  # the item's own part, of equal size, kept the layer
    assert set(policy.neighbours("ann", "news")) == {"ann", "bob"}


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(
    ("seed", "alpha", "alpha2", "complete"),
    [(1, 0.1, 0.5, False), (2, 0.4, 0.2, True), (3, 0.05, 0.1, False)],
)
def test_equal_to_the_twin(one_hot: bool, seed: int, alpha: float, alpha2: float, complete: bool) -> None:
    world = make_world(seed, n_users=10, d=4, n_items=9, n_clusters=3, one_hot=one_hot)
    kind: dict[str, Any] = {"one_hot": True} if one_hot else {"n_features": 4}
    policy = COFIBA(alpha=alpha, alpha2=alpha2, complete=complete, seed=seed, **kind)
    twin = NaiveCOFIBA(9 if one_hot else 4, alpha, alpha2, complete, seed)

    def graphs_are_equal(t: int) -> None:
        if t % 50 == 0:
            assert {frozenset(map(int, e)) for e in policy._user_graph.ends} == twin.base
            assert len(policy._layers) == len(twin.graphs)
            for cluster, layer in policy._layers.items():
                alive = policy._user_graph.ends[policy._user_graph.alive(layer)]
                assert {frozenset(map(int, e)) for e in alive} == twin.graphs[cluster]

    agree(policy, twin, world.visits(300, seed), after=graphs_are_equal)
    assert len(twin.graphs) > 1 or alpha2 == 0.5
    assert any(graph != twin.base for graph in twin.graphs.values()) or alpha2 == 0.5


def test_deleted_edges_do_not_come_back() -> None:
    """Not by agreeing again, not by a new user or item, and not by saving and loading."""
    policy = COFIBA(one_hot=True, alpha2=0.2, complete=True)
    for user in ("a", "b", "c"):
        policy.add(user)
    policy.learn("a", "x", 1.0)
    layer = policy._layers[0]
    assert (~layer).sum() == 2
    for _ in range(30):
        policy.learn("b", "x", 1.0)
        policy.learn("c", "x", 1.0)
    assert (policy._layers[0][: len(layer)] <= layer).all()
    policy.add("d")
    alive = policy._user_graph.alive(policy._layers[0])
    assert not alive[:2].any()
    assert alive[-3:].all()


def test_one_hot_neighbourhoods_have_more_than_one_member() -> None:
    policy = COFIBA(one_hot=True, alpha2=2.0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        policy.learn(f"u{rng.integers(10)}", f"i{rng.integers(5)}", float(rng.random() < 0.5))
    assert policy.explain("u0", ["i0", "i1", "never seen"]).members.tolist() == [10, 10, 10]


def test_the_pool_is_never_stale() -> None:
    """After every payoff the pool of every component is the sum of its members' payoffs, whoever moved or left."""
    policy = COFIBA(n_features=3, alpha2=0.25, seed=3)
    world = make_world(7, n_users=12, d=3, n_items=8, n_clusters=4, one_hot=False)
    history: dict[Any, list[Any]] = {}
    rng = np.random.default_rng(7)
    for t in range(200):
        u = int(rng.integers(12))
        user, x = world.users[u], world.items[rng.integers(8)]
        payoff = float(rng.random() < np.clip(world.taste[u] @ x, 0, 1))
        policy.learn(user, x, payoff)
        history.setdefault(user, []).append((x, payoff))
        if t == 120:
            policy.drop(user)
            del history[user]
        for probe in ("u0", "u5"):
            x = world.items[rng.integers(8)]
            past = [pair for name in policy.neighbours(probe, x) for pair in history.get(name, [])]
            M = np.eye(3) + sum((np.outer(a, a) for a, _ in past), np.zeros((3, 3)))
            b = sum((y * a for a, y in past), np.zeros(3))
            assert policy.explain(probe, [x]).near_estimate[0] == pytest.approx(x @ np.linalg.solve(M, b))


def test_a_dropped_user_leaves_every_pool_and_every_layer(tmp_path: Path) -> None:
    policy = COFIBA(one_hot=True, alpha2=3.0)
    for user in ("ann", "bob", "cid"):
        policy.learn(user, "jazz", 1.0)
    assert policy.explain("bob", ["jazz"]).near_estimate[0] == pytest.approx(3 / 4)
    policy.drop("ann")
    assert policy.explain("bob", ["jazz"]).near_estimate[0] == pytest.approx(2 / 3)
    assert policy.explain("bob", ["jazz"]).members.tolist() == [2]
    assert policy.neighbours("ann", "jazz") == ["bob", "cid", "ann"]  # a stranger, who belongs to everybody's
    policy.save(tmp_path / "model")
    assert b"ann" not in (tmp_path / "model").read_bytes()


def test_vectors_are_items_by_their_numbers() -> None:
    policy = COFIBA(n_features=2)
    policy.learn("ann", [0.0, 1.0], 1.0)
    policy.learn("ann", [-0.0, 1.0], 1.0)
    policy.learn("ann", [1e-9, 1.0], 1.0)
    assert [len(cluster) for cluster in policy.item_clusters] == [2]


def test_components_are_those_of_a_search() -> None:
    """Compiled components against sets, on random graphs, with edges that arrived after the layer's last deletion."""
    rng = np.random.default_rng(8)
    sizes = set()
    for n in (1, 2, 5, 30, 80):
        graph = LayeredGraph()
        for _ in range(n):
            graph.arrive(n)
        for share in (0.0, 0.5, 0.9, 1.0):
            layer = rng.random(len(graph.ends) - n // 2 * (share == 0.9)) >= share
            alive = {frozenset(map(int, e)) for e in graph.ends[graph.alive(layer)]}
            labels = graph.labels(layer)
            for node in range(n):
                assert set(np.flatnonzero(labels == labels[node]).tolist()) == component(node, alive)
                edges, others = graph.touching(node, layer)
                assert {frozenset((node, int(other))) for other in others} == {e for e in alive if node in e}
                assert graph.alive(layer)[edges].all()
            for known in range(
                1, n
            ):  # from the components of the first nodes, as long as no edge was lost since
                early = LayeredGraph()
                early.ends, early.n_nodes = graph.ends[graph.ends[:, 1] < known], known
                assert (graph.labels(layer, early.labels(layer[: len(early.ends)])) == labels).all()
            first = [int(np.flatnonzero(labels == label)[0]) for label in range(labels.max() + 1)]
            assert first == sorted(first)  # numbered by first appearance
            sizes.add(len(first))
    assert len(sizes) > 4


def test_random_graphs_are_sparse_and_seeded() -> None:
    one, two, other = (COFIBA(n_features=2, seed=seed) for seed in (4, 4, 5))
    for policy in (one, two, other):
        for user in range(400):
            policy.add(user)
    assert (one._user_graph.ends == two._user_graph.ends).all()
    assert one._user_graph.ends.shape != other._user_graph.ends.shape
    assert len(one._user_graph.ends) < 400 * 3 * math.log(400)
    assert one.explain(0, np.eye(2)).members.tolist() == [400, 400]


def test_planted_clusters_are_found_on_one_item() -> None:
    """Half the users love the item and half do not; after forty payoffs each they are two components."""
    policy = COFIBA(one_hot=True, alpha2=0.6)
    rng = np.random.default_rng(1)
    for t in range(40 * 20):
        user = t % 20
        policy.learn(user, "jazz", float(rng.random() < (0.95 if user < 10 else 0.05)))
    assert set(policy.neighbours(3, "jazz")) == set(range(10))
    assert set(policy.neighbours(14, "jazz")) == set(range(10, 20))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    policy = COFIBA(one_hot=True, alpha2=0.1)
    for user in ("a", "b", "c"):
        policy.add(user)
    for user in ("a", "b", "c"):
        policy.learn(user, "x", 1.0)
        policy.learn(user, "y", 0.0)
    policy.save(tmp_path / "good")
    state = read_file(tmp_path / "good", "cofiba")
    for name, value, message in [
        ("deleted", np.full_like(state.tensors["deleted"], 99), "deletes edges that are not there"),
        ("item_cluster", np.array([7, 7]), "contradict"),
        ("users_edges", np.array([[0, 9]]), "contradict"),
        ("users_edges", state.tensors["users_edges"][::-1].copy(), "contradict"),
    ]:
        write_file(
            tmp_path / "bad",
            "cofiba",
            PolicyState(state.parameters, state.progress, {**state.tensors, name: value}),
        )
        with pytest.raises(FileError, match=message):
            COFIBA.load(tmp_path / "bad")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": -1}, "alpha is -1"),
        ({"alpha2": -0.1}, "alpha2 is -0.1, expected a finite number of at least 0"),
        ({"complete": "yes"}, "complete is 'yes', expected True or False"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        COFIBA(n_features=5, **given)
