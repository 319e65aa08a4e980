"""GOB.Lin: by hand, against the whole matrix as the paper prints it, its two variants, and what a graph may be."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from coterie import Policy
from coterie.errors import ParameterError
from coterie.policies import GOBLin, LinUCB
from coterie.policies.social.social_graph import cut, read_graph
from tests.naive import NaiveGOBLin
from tests.playing import agree
from tests.worlds import adjacency, make_world, random_graph, unit_vectors


def test_two_friends_by_hand() -> None:
    """One edge: L = [[1, −1], [−1, 1]], A = [[2, −1], [−1, 2]], A⁻¹ = [[2, 1], [1, 2]]/3.

    d = 1. Ann pays 1 for x = 1: C = (A + diag(1, 0))⁻¹ = [[3, −1], [−1, 2]]⁻¹ = [[2, 1], [1, 3]]/5 and w = C(1, 0)
    = (2/5, 1/5). Bob, who never paid, expects 1/5 and is less sure, √(3/5); the scale at t = 2 is α√log 3.
    """
    policy = GOBLin(n_features=1, alpha=0.5, graph=[("ann", "bob")])
    assert policy.explain("ann", [[1.0]]).width[0] == pytest.approx(0.5 * math.sqrt(2 / 3 * math.log(2)))
    assert policy.learn("ann", [1.0], 1.0) == 2
    ann, bob = policy.explain("ann", [[1.0]]), policy.explain("bob", [[1.0]])
    scale = 0.5 * math.sqrt(math.log(3))
    assert (ann.estimate[0], ann.width[0]) == (pytest.approx(0.4), pytest.approx(scale * math.sqrt(0.4)))
    assert (bob.estimate[0], bob.width[0]) == (pytest.approx(0.2), pytest.approx(scale * math.sqrt(0.6)))
    assert ann.members.tolist() == bob.members.tolist() == [2]


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(
    ("seed", "alpha", "p", "weighted"), [(1, 0.1, 0.1, False), (2, 0.6, 0.3, True), (3, 0.0, 0.05, True)]
)
def test_equal_to_the_whole_matrix(one_hot: bool, seed: int, alpha: float, p: float, weighted: bool) -> None:
    world = make_world(seed, n_users=9, d=4, n_items=8, n_clusters=3, one_hot=one_hot)
    edges = random_graph(np.random.default_rng(seed), world, p, weighted)
    kind: dict[str, Any] = {"one_hot": True} if one_hot else {"n_features": 4}
    policy = GOBLin(alpha=alpha, graph=edges, variant="exact", **kind)
    twin = NaiveGOBLin(8 if one_hot else 4, alpha, *adjacency(world.users, edges))
    agree(policy, twin, world.visits(300, seed))


def test_one_hot_users_are_not_alone() -> None:
    policy = GOBLin(one_hot=True, graph=[("ann", "bob")])
    policy.learn("ann", "jazz", 1.0)
    told = policy.explain("bob", ["jazz", "news"])
    assert told.members.tolist() == [2, 2]
    assert told.estimate.tolist() == [pytest.approx(0.2), 0.0]


@pytest.mark.parametrize("one_hot", [False, True])
def test_block_is_exact_without_the_edges_between_clusters(one_hot: bool) -> None:
    world = make_world(4, n_users=12, d=3, n_items=7, n_clusters=3, one_hot=one_hot)
    edges = random_graph(np.random.default_rng(4), world, 0.3, True)
    clusters = [world.users[:5], world.users[5:9]]  # the last three are on their own
    of = {user: k for k, group in enumerate(clusters) for user in group}
    kept = [edge for edge in edges if edge[0] in of and of[edge[0]] == of.get(edge[1])]
    assert len(kept) < len(edges)
    kind: dict[str, Any] = {"one_hot": True} if one_hot else {"n_features": 3}
    policy = GOBLin(alpha=0.3, graph=edges, clusters=clusters, **kind)
    twin = NaiveGOBLin(7 if one_hot else 3, 0.3, *adjacency(world.users, kept))
    agree(policy, twin, world.visits(300, 4))


@pytest.mark.parametrize("one_hot", [False, True])
def test_macro_is_exact_on_the_graph_of_clusters(one_hot: bool) -> None:
    world = make_world(5, n_users=12, d=3, n_items=7, n_clusters=3, one_hot=one_hot)
    edges = random_graph(np.random.default_rng(5), world, 0.3, True)
    clusters = [world.users[k::4] for k in range(4)]
    nodes: dict[Any, int] = {user: k for k, group in enumerate(clusters) for user in group}
    weights = np.zeros((4, 4))
    for u, v, weight in edges:
        if nodes[u] != nodes[v]:
            weights[nodes[u], nodes[v]] += weight
            weights[nodes[v], nodes[u]] += weight
    kind: dict[str, Any] = {"one_hot": True} if one_hot else {"n_features": 3}
    policy = GOBLin(alpha=0.3, graph=edges, clusters=clusters, variant="macro", **kind)
    agree(policy, NaiveGOBLin(7 if one_hot else 3, 0.3, nodes, weights), world.visits(300, 5))
    assert policy.explain(world.users[0], [0] if one_hot else world.items[:1]).members.tolist() == [12]


def test_without_a_graph_it_is_linucb() -> None:
    world = make_world(6, n_users=5, d=3, n_items=9, n_clusters=2, one_hot=False)
    mine, other = GOBLin(n_features=3, alpha=0.4), LinUCB(n_features=3, alpha=0.4)
    rng = np.random.default_rng(6)
    for _ in range(200):
        user, contexts = world.users[rng.integers(5)], world.items[rng.permutation(9)[:4]]
        a, b = mine.explain(user, contexts), other.explain(user, contexts)
        assert a.score == pytest.approx(b.score, abs=1e-10)
        assert a.choice == b.choice
        for policy in (mine, other):
            policy.learn(user, contexts[a.choice], 0.5)


def test_friends_help_a_newcomer() -> None:
    """Ten friends with one taste; nine have paid for e₁. The tenth expects to pay too, and so prefers it."""
    friends = [f"f{i}" for i in range(10)]
    policy = GOBLin(n_features=2, graph={f: friends[:i] for i, f in enumerate(friends)}, alpha=0.01)
    for _ in range(20):
        for friend in friends[:9]:
            policy.learn(friend, [1.0, 0.0], 1.0)
    assert policy.explain("f9", np.eye(2)[::-1]).choice == 1
    assert policy.explain("somebody else", np.eye(2)[::-1]).choice == 0


def test_the_users_matrices_are_their_own() -> None:
    """An identity that is shared and mutated would show in a user who never paid."""
    policy = GOBLin(n_features=2, graph=[("a", "b"), ("c", "d")])
    before = policy.explain("c", np.eye(2)).score, policy.explain("stranger", np.eye(2)).width
    for _ in range(5):
        policy.learn("a", [1.0, 0.0], 1.0)
        policy.learn("e", [1.0, 0.0], 1.0)
    grown = math.sqrt(math.log(7 + 5) / math.log(2))
    assert policy.explain("c", np.eye(2)).score == pytest.approx(before[0] * grown)
    assert policy.explain("stranger", np.eye(2)).width == pytest.approx(before[1] * grown)


@pytest.mark.parametrize("one_hot", [False, True])
def test_dropping_a_friend_leaves_what_the_others_learned(one_hot: bool, tmp_path: Path) -> None:
    kind: dict[str, Any] = {"one_hot": True} if one_hot else {"n_features": 2}
    contexts: Any = ["x", "y"] if one_hot else np.eye(2)
    policy: Policy = GOBLin(
        graph=[("a", "b"), ("b", "c"), ("c", "d")], clusters=[["a", "b", "c", "d"]], **kind
    )
    for user in ("a", "b", "d"):
        policy.learn(user, contexts[0], 1.0)
    before = {user: policy.explain(user, contexts).score for user in "acd"}
    policy.drop("b")
    for user in "acd":
        assert policy.explain(user, contexts).score == pytest.approx(before[user], abs=1e-12)
        assert policy.explain(user, contexts).members.tolist() == [3, 3]
    assert policy.parameters["graph"] == [("c", "d", 1.0)]
    assert policy.parameters["clusters"] == [["a", "c", "d"]]
    policy.save(tmp_path / "model")
    assert b'"b"' not in (tmp_path / "model").read_bytes()
    assert policy.explain("b", contexts).estimate.tolist() == [0, 0]
    assert policy.explain("b", contexts).members.tolist() == [1, 1]
    loaded = GOBLin.load(tmp_path / "model")
    assert loaded.parameters == policy.parameters
    for user in "abcd":
        assert policy.learn(user, contexts[1], 0.5) == loaded.learn(user, contexts[1], 0.5)
        assert (policy.explain(user, contexts).score == loaded.explain(user, contexts).score).all()


def test_a_macro_node_lives_as_long_as_one_of_its_users() -> None:
    policy = GOBLin(
        n_features=1, graph=[("a", "b"), ("b", "c")], clusters=[["a", "b"], ["c"]], variant="macro"
    )
    policy.learn("a", [1.0], 1.0)
    known = policy.explain("b", [[1.0]]).estimate[0]
    policy.drop("a")
    assert policy.explain("b", [[1.0]]).estimate[0] == known > 0
    policy.drop("b")
    assert policy.users == ["c"]
    assert policy.explain("b", [[1.0]]).estimate[0] == 0
    assert policy.explain("c", [[1.0]]).estimate[0] > 0


def test_every_form_of_a_graph_is_the_same_graph() -> None:
    forms: list[Any] = [
        [("a", "b"), ("b", "c")],
        [["a", "b"], ["c", "b", 1], ("b", "a")],
        {"a": ["b"], "b": ["a", "c"], "c": []},
        {"a": {"b": 1.0}, "b": {"c": 1}},
        {("a", "b"): 1, ("b", "c"): 1.0},
        iter([("a", "b"), ("b", "c")]),
    ]
    for form in forms:
        social = read_graph(form, None)
        assert set(social.users) == {"a", "b", "c"}
        assert {frozenset(edge[:2]) for edge in social.edges} == {frozenset("ab"), frozenset("bc")}
    assert read_graph({(1, 2): ["x"]}, None).edges == [((1, 2), "x", 1.0)]
    assert read_graph(np.array([[1, 2], [2, 3]]), None).edges == [(1, 2, 1.0), (2, 3, 1.0)]
    assert read_graph((), ["a", "b"]).users == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"graph": [("a", "b")], "users": ["a"]}, "graph has 1 users that are not in users, such as 'b'"),
        ({"graph": [("a", "a")]}, "graph has an edge from 'a' to itself"),
        ({"graph": [("a", "b", 2), ("b", "a", 3)]}, "graph gives 'b' and 'a' two weights, 2 and 3"),
        ({"graph": [("a", "b", -1)]}, "the weight between 'a' and 'b' is -1, expected a finite number"),
        ({"graph": [("a", "b", 0)]}, "the weight between 'a' and 'b' is 0, expected more than 0"),
        ({"graph": [("a", "b", math.nan)]}, "the weight between 'a' and 'b' is nan"),
        ({"graph": ["ab"]}, "graph holds 'ab', expected an edge of two users"),
        ({"graph": "ab"}, "graph is 'ab', expected edges"),
        ({"graph": 3}, "graph is 3, expected edges"),
        ({"graph": {"a": "bob"}}, r"graph\['a'\] is the single string 'bob'"),
        ({"graph": [([], "b")]}, "unhashable"),
        ({"users": "ann"}, "users is the single string 'ann'"),
        ({"users": 3}, "users is 3, expected a sequence"),
        ({"variant": "gossip"}, "variant is 'gossip', expected 'block', 'macro' or 'exact'"),
        ({"variant": "exact", "clusters": [["a"]]}, "clusters are for the variants"),
        ({"clusters": [["a"]]}, "clusters holds user 'a', who is not in the graph"),
        ({"graph": [("a", "b")], "clusters": [["a"], ["a"]]}, "clusters holds user 'a' twice"),
        ({"clusters": "ab"}, "clusters is 'ab', expected a list of groups"),
        ({"largest": 0}, "largest is 0, expected a whole number of at least 1"),
        ({"graph": [(i, i + 1) for i in range(30)], "variant": "exact", "limit": 99},
         r"a part of the graph has 31 nodes, which needs a matrix of 155 × 155 \(0.000192 GB\), more than limit=99"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"alpha": -1}, "alpha is -1"),
    ],
)  # fmt: skip
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        GOBLin(n_features=5, **given)


def test_planted_clusters_are_found_and_none_is_too_large() -> None:
    """Thirty groups of fifteen friends, each knowing two strangers: the cut gives the groups back."""
    rng = np.random.default_rng(0)
    group = np.arange(450) // 15
    dense = (group[:, None] == group) & (rng.random((450, 450)) < 0.7) | (rng.random((450, 450)) < 2 / 450)
    weights = csr_array(np.triu(dense, 1).astype(float))
    weights = weights + weights.T
    label = cut(weights, 20, np.random.default_rng(1))
    assert np.bincount(label).max() <= 20
    assert (label == cut(weights, 20, np.random.default_rng(1))).all()
    sizes = [np.bincount(label[group == g]).max() for g in range(30)]
    assert np.mean(sizes) > 14
    for largest in (60, 450):
        assert np.bincount(cut(weights, largest, rng)).max() <= largest


def test_a_large_graph_is_cut_into_blocks_and_the_same_seed_cuts_alike() -> None:
    rng = np.random.default_rng(2)
    edges = [(int(a), int(b)) for a, b in rng.integers(300, size=(900, 2)) if a != b]
    one, two = (GOBLin(n_features=3, graph=edges, largest=8, seed=7) for _ in range(2))
    assert [list(block.nodes) for block in one.models.blocks.values()] == [
        list(block.nodes) for block in two.models.blocks.values()
    ]
    assert max(block.n_users for block in one.models.blocks.values()) <= 8
    assert sum(block.n_users for block in one.models.blocks.values()) == len(one.users)
    for t in range(50):
        user, contexts = int(rng.integers(300)), unit_vectors(rng, 4, 3)
        k = one.choose(user, contexts)
        assert k == two.choose(user, contexts)
        one.learn(user, contexts[k], 0.1 * (t % 10))
        two.learn(user, contexts[k], 0.1 * (t % 10))


def test_two_thousand_users_with_25_features_fit() -> None:
    """The whole matrix would be 20 GB; in blocks of up to 20 users it is 200 MB at most, made as it learns."""
    rng = np.random.default_rng(3)
    group = rng.permutation(np.arange(2000) % 100)
    pairs = rng.integers(2000, size=(60000, 2))
    close = (group[pairs[:, 0]] == group[pairs[:, 1]]) | (rng.random(60000) < 0.002)
    edges = [(int(a), int(b)) for a, b in pairs[close] if a != b]
    policy = GOBLin(n_features=25, graph=edges, users=range(2000))
    rows = [len(block.nodes) * 25 for block in policy.models.blocks.values()]
    assert max(rows) <= 500
    assert sum(r * r * 8 for r in rows) <= 200e6
    for user in range(0, 2000, 100):
        contexts = unit_vectors(rng, 5, 25)
        policy.learn(user, contexts[policy.choose(user, contexts)], 1.0)
    assert sum(t.nbytes for t in policy.tensors().values()) < 60e6
