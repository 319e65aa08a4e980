"""Synthetic worlds keep the γ-gap assumption, and tell the truth about what they send."""

import json
import math
from collections.abc import Hashable
from itertools import combinations, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import WORLDS, DenseWorld, OneHotWorld, World, make_world
from coterie.errors import ContextError, ParameterError, UserError


def contexts_of(world: World, n_rounds: int = 5) -> list[Any]:
    return [context for sent in world.rounds(n_rounds) for context in sent.contexts]


def same(a: Any, b: Any) -> bool:
    """Whether two rounds are equal in every field, to the last bit."""
    return all(np.array_equal(one, other) for one, other in zip(a, b, strict=True))


@st.composite
def one_hot_worlds(draw: st.DrawFn) -> OneHotWorld:
    clusters = draw(st.integers(1, 5))
    noise: Any = draw(st.sampled_from(["clicks", 0.0, 0.1, 0.55]))
    room = 1 if noise == "clicks" else 2 * (1 - noise)
    n_items = draw(st.integers(1, 12))
    return OneHotWorld(
        n_users=draw(st.integers(clusters, 12)),
        n_items=n_items,
        n_families=draw(st.integers(1, n_items)),
        clusters_per_family=clusters,
        gap=draw(st.floats(1e-6, 0.999999)) * room / max(clusters - 1, 1),
        noise=noise,
        n_candidates=draw(st.integers(1, n_items)),
        popularity=draw(st.sampled_from(["even", "zipf"])),
        turnover=draw(st.sampled_from([0.0, 50.0])),
        seed=draw(st.integers(0, 9)),
    )


@st.composite
def dense_worlds(draw: st.DrawFn) -> DenseWorld:
    clusters, families = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    return DenseWorld(
        n_users=draw(st.integers(clusters, 12)),
        n_features=clusters * families + draw(st.integers(0, 4)),
        n_families=families,
        clusters_per_family=clusters,
        gap=draw(st.floats(1e-3, 0.1)),
        noise=draw(st.sampled_from([0.0, 0.2, 0.5])),
        n_candidates=draw(st.integers(1, 6)),
        popularity=draw(st.sampled_from(["even", "zipf"])),
        turnover=draw(st.sampled_from([0.0, 50.0])),
        seed=draw(st.integers(0, 9)),
    )


any_world = st.one_of(one_hot_worlds(), dense_worlds())


def test_two_clusters_as_far_apart_as_can_be_are_sure_clicks_and_sure_misses() -> None:
    """With gap 1 and values in [0, 1], one cluster's value is 0 and the other's is 1: nothing else fits."""
    world = OneHotWorld(n_users=4, n_items=3, n_families=1, gap=1.0, n_candidates=3)
    for item in range(3):
        likes = [user for user in world.users() if world.truth(user)[item] == 1]
        hates = [user for user in world.users() if world.truth(user)[item] == 0]
        assert len(likes) == len(hates) == 2
        assert world.neighbours(likes[0], item) == likes
        assert world.n_clusters(item) == 2
    for sent in world.rounds(20):
        assert np.array_equal(sent.payoffs, sent.expected)
        assert sorted(sent.contexts) == [0, 1, 2]


def test_a_dense_world_of_one_family_and_no_room_is_known_by_hand() -> None:
    """One family, two clusters, two features: r = 1, and the widest gap, √2, leaves x = ±(1, -1)/√2."""
    world = DenseWorld(n_users=2, n_features=2, n_families=1, gap=1.414213, noise=0, n_candidates=1)
    assert world.truth(0) @ world.truth(1) == pytest.approx(0)
    (sent,) = world.rounds(1)
    paid = [world.expected(user, sent.contexts)[0] for user in world.users()]
    assert sorted(paid) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=2e-3)


@settings(max_examples=60, deadline=None)
@given(any_world)
def test_the_gap_holds_for_all_users_and_all_contexts_sent(world: Any) -> None:
    users = [*world.users(), 1000, 1001]  # two of them newcomers
    for context in contexts_of(world):
        paid = [float(world.expected(user, [context])[0]) for user in users]
        clusters = [world.population.clusters(user)[world.family(context)] for user in users]
        for (a, in_a), (b, in_b) in combinations(zip(paid, clusters, strict=True), 2):
            assert a == b if in_a == in_b else abs(a - b) >= world.gap
        assert world.n_clusters(context) == world.clusters_per_family
        assert world.n_clusters(context, users) == len(set(paid))
        assert world.neighbours(0, context, users) == [
            user for user, value in zip(users, paid, strict=True) if value == paid[0]
        ]


@settings(max_examples=40, deadline=None)
@given(any_world)
def test_what_a_round_expects_is_what_the_world_tells(world: Any) -> None:
    for sent in world.rounds(5):
        assert np.array_equal(sent.expected, world.expected(sent.user, sent.contexts))
        truth = world.truth(sent.user)
        dotted = truth[sent.contexts] if world.one_hot else sent.contexts @ truth
        assert sent.expected == pytest.approx(dotted, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(any_world)
def test_payoffs_and_lengths_keep_to_the_papers_limits(world: Any) -> None:
    for sent in world.rounds(20):
        assert len(sent.contexts) == len(sent.payoffs) == world.n_candidates
        assert np.abs(sent.payoffs).max() <= 1
        if world.one_hot:
            assert len(set(sent.contexts)) == world.n_candidates
        else:
            assert np.linalg.norm(sent.contexts, axis=1).max() <= 1
            assert np.linalg.norm(world.truth(sent.user)) == pytest.approx(1)


@settings(max_examples=30, deadline=None)
@given(any_world)
def test_the_same_seed_sends_the_same_rounds_and_a_prefix_stays_a_prefix(world: Any) -> None:
    again = make_world(json.loads(json.dumps(world.parameters())))
    assert again == world
    long = list(world.rounds(12, seed=5))
    assert all(same(a, b) for a, b in zip(again.rounds(4, seed=5), long[:4], strict=True))
    assert all(same(a, b) for a, b in zip(again.rounds(12, seed=5), long, strict=True))


@pytest.mark.parametrize("name", WORLDS)
def test_another_seed_sends_other_rounds(name: str) -> None:
    world = WORLDS[name]()
    first = list(world.rounds(5))
    assert not all(same(a, b) for a, b in zip(first, world.rounds(5, seed=1), strict=True))
    assert not all(same(a, b) for a, b in zip(first, WORLDS[name](seed=1).rounds(5), strict=True))


@settings(max_examples=20, deadline=None)
@given(any_world)
def test_the_mean_of_payoffs_is_what_was_expected(world: Any) -> None:
    """Payoffs lie in [-1, 1]: the mean of 20,000 is within 8 standard errors, 0.06."""
    (sent,) = world.rounds(1)
    rng = np.random.default_rng(0)
    mean = np.mean([world.payoffs(sent.expected, rng) for _ in range(20_000)], axis=0)
    assert mean == pytest.approx(sent.expected, abs=0.06)


@pytest.mark.parametrize("name", ["music-and-news", "dense"])
def test_to_agree_on_one_family_says_nothing_about_another(name: str) -> None:
    world = WORLDS[name]()
    by_family = {world.family(context): context for context in contexts_of(world)}
    users = world.users()
    mine = {family: set(world.neighbours(0, context)) for family, context in by_family.items()}
    assert len(mine) >= 2
    for one, other in combinations(mine.values(), 2):
        expected = len(one) * len(other) / len(users)
        assert len(one & other) == pytest.approx(expected, rel=0.35)


def test_items_of_one_family_have_the_same_neighbourhoods() -> None:
    world = OneHotWorld(n_items=12, n_families=3)
    assert world.family(1) == world.family(4) == 1
    assert world.neighbours(0, 1) == world.neighbours(0, 4) != world.neighbours(0, 2)


def test_dense_contexts_vary_in_every_direction() -> None:
    world = WORLDS["dense"]()
    contexts = np.array(contexts_of(world, n_rounds=200))
    assert np.linalg.eigvalsh(contexts.T @ contexts / len(contexts))[0] > 0.01


@pytest.mark.parametrize("name", WORLDS)
def test_the_first_candidate_pays_what_a_random_one_pays(name: str) -> None:
    paid = np.array([sent.expected for sent in WORLDS[name]().rounds(4_000)])
    assert paid[:, 0].mean() == pytest.approx(paid.mean(), abs=0.03)


def test_even_users_visit_alike_and_zipf_users_by_rank() -> None:
    def visits(popularity: str) -> Any:
        world = OneHotWorld(n_users=4, popularity=popularity)
        return np.bincount([int(str(sent.user)) for sent in world.rounds(6_000)], minlength=4) / 6_000

    assert visits("even") == pytest.approx([0.25] * 4, abs=0.03)
    assert visits("zipf") == pytest.approx(np.array([12, 6, 4, 3]) / 25, abs=0.03)  # 1, 1/2, 1/3, 1/4


def test_a_world_with_turnover_never_serves_a_leaver_and_announces_every_newcomer() -> None:
    world = OneHotWorld(n_users=20, turnover=50.0)
    present: set[Hashable] = set(world.users())
    gone: set[Hashable] = set()
    for sent in world.rounds(2_000):
        assert set(sent.left) <= present
        assert not set(sent.joined) & (present | gone)
        present = (present - set(sent.left)) | set(sent.joined)
        gone |= set(sent.left)
        assert sent.user in present
        assert len(present) == 20
    assert len(gone) == pytest.approx(20 * 50 * 2, rel=0.15)  # 50 times all users in 1,000 rounds


@pytest.mark.parametrize("kind", [OneHotWorld, DenseWorld])
def test_in_a_drifting_world_users_stay_and_their_tastes_change(
    kind: type[OneHotWorld] | type[DenseWorld],
) -> None:
    """With drift 20 each of 10 users changes 20 times in 1,000 rounds, in which the user comes 100 times."""
    world = kind(n_users=10, drift=20.0)
    has: dict[int, int] = {user: user for user in range(10)}
    changes = 0
    for visit in islice(world.population.visits(np.random.default_rng(1)), 5_000):
        assert not visit.joined
        assert not visit.left
        changes += has[visit.user] != visit.taste
        has[visit.user] = visit.taste
    # A user comes every 10 rounds and changes every 50: of 60 such events 10 are changes, seen at the next visit.
    assert changes == pytest.approx(5_000 * 10 / 60, rel=0.1)
    changed = [
        (sent.expected != world.expected(sent.user, sent.contexts)).any() for sent in world.rounds(400)
    ]
    assert not changed[0]
    assert sum(changed) > 200
    assert make_world(world.parameters()) == world


def test_a_world_without_drift_is_described_as_before() -> None:
    assert "drift" not in OneHotWorld().parameters()
    assert "drift" not in DenseWorld().parameters()
    coming = islice(OneHotWorld(turnover=50.0).population.visits(np.random.default_rng(0)), 99)
    assert all(visit.taste == visit.user for visit in coming)


def test_without_turnover_nobody_comes_or_goes() -> None:
    assert not any(sent.joined or sent.left for sent in OneHotWorld().rounds(300))


def test_the_first_round_finds_the_users_of_the_start() -> None:
    (first,) = OneHotWorld(turnover=1000).rounds(1)
    assert (first.joined, first.left) == ((), ())
    _, second = OneHotWorld(n_users=5, turnover=1000).rounds(2)
    assert set(second.left) == {0, 1, 2, 3, 4}
    assert set(second.joined) == {5, 6, 7, 8, 9}


def test_in_the_lonely_world_nobody_has_company() -> None:
    world = WORLDS["lonely"]()
    assert world.n_clusters(0) == len(world.users())
    assert world.neighbours(3, 7) == [3]


@pytest.mark.parametrize("name", WORLDS)
def test_built_in_worlds_have_one_line_about_them(name: str) -> None:
    assert 0 < len(WORLDS[name].about) < 100
    assert "\n" not in WORLDS[name].about


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"n_users": 0}, "n_users is 0, expected a whole number of at least 1"),
        ({"n_users": True}, "n_users is True, expected a whole number"),
        ({"n_candidates": 2.5}, "n_candidates is 2.5, expected a whole number of at least 1"),
        ({"n_items": 0}, "n_items is 0, expected a whole number of at least 1"),
        ({"n_families": 0}, "n_families is 0, expected a whole number of at least 1"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
        ({"n_users": 3, "clusters_per_family": 4}, "some clusters would be empty; ask for at most 3"),
        ({"n_families": 21}, "n_families is 21 and n_items is 20: ask for at most 20, or for more items"),
        ({"n_candidates": 21}, "n_candidates is 21 and n_items is 20: ask for at most 20"),
        ({"gap": 0}, "gap is 0, expected a number above 0 and at most 2"),
        ({"gap": float("nan")}, "gap is nan, expected a number above 0"),
        ({"gap": "wide"}, "gap is 'wide', expected a number above 0"),
        (
            {"gap": 0.6, "clusters_per_family": 3},
            r"gap is 0.6, expected at most 0.5 for 3 clusters in 4 families with noise 'clicks'; ask for a "
            "smaller gap, fewer clusters or less noise",
        ),
        ({"gap": 1.5, "noise": 0.5}, "gap is 1.5, expected at most 1.0 for 2 clusters"),
        ({"noise": 1.0}, r'noise is 1.0, expected a number from 0 to below 1 or "clicks", so that payoffs'),
        ({"noise": "loud"}, "noise is 'loud', expected a number from 0 to below 1 or"),
        ({"popularity": "fame"}, "popularity is 'fame', expected one of: even, zipf"),
        ({"turnover": -0.1}, "turnover is -0.1, expected a number from 0 to 1000: the share of users"),
        ({"drift": 1001}, "drift is 1001, expected a number from 0 to 1000: the share of users whose tastes"),
        (
            {"kind": "dense", "n_features": 5},
            "n_features is 5, expected at least 6: one for each of 2",
        ),
        ({"kind": "dense", "noise": "clicks"}, "noise is 'clicks', expected a number from 0 to below 1, so"),
        ({"kind": "dense", "noise": -0.1}, "noise is -0.1, expected a number from 0 to below 1"),
        ({"kind": "dense", "gap": 0.8}, r"gap is 0.8, expected at most 0.73\d+ for 2 clusters in 3 families"),
        ({"kind": "flat"}, "kind of world is 'flat', expected one of: one-hot, dense"),
        ({"colour": 1}, "a one-hot world has no parameter 'colour', expected any of: n_users, clusters_"),
    ],
)
def test_a_world_that_cannot_be_says_why(made: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make_world({"kind": "one-hot", **made})


@pytest.mark.parametrize("parameters", [{"kind": "one-hot", "clusters_per_family": 4}, {"kind": "dense"}])
def test_the_largest_gap_named_in_the_refusal_is_accepted(parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterError) as refused:
        make_world({**parameters, "gap": 2})
    largest = float(str(refused.value).split("at most ")[1].split(" for")[0])
    world = make_world({**parameters, "gap": largest})
    assert world.n_clusters(contexts_of(world)[0]) > 1


def test_rounds_refuse_a_bad_count_or_seed_at_once() -> None:
    with pytest.raises(ParameterError, match="n_rounds is -1, expected a whole number of at least 0"):
        OneHotWorld().rounds(-1)
    with pytest.raises(ParameterError, match="seed is None, expected a whole number"):
        OneHotWorld().rounds(1, seed=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("user", [-1, "ann", 1.0, True])
def test_a_user_that_cannot_be_is_refused(user: Any) -> None:
    with pytest.raises(UserError, match=r"user is .*, this world's users are the integers 0, 1, 2"):
        OneHotWorld().truth(user)


def test_contexts_of_another_world_are_refused() -> None:
    with pytest.raises(ContextError, match=r"item is 20, this world's items are the integers 0 to 19"):
        OneHotWorld(n_items=20).family(20)
    world = DenseWorld(n_features=12)
    with pytest.raises(ContextError, match=r"contexts have the shape \(1, 3\), this world's have \(candid"):
        world.family(np.ones(3))
    with pytest.raises(
        ContextError, match="context 1 belongs to 3 families, expected one; use only contexts"
    ):
        world.expected(0, [contexts_of(world)[0], np.ones(12)])
    with pytest.raises(ContextError, match="context 0 belongs to 0 families"):
        world.family(np.zeros(12))
