"""Policies that forget what is old. Hierarchical's own tests are with the rest of Hierarchical's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import CAB, Batch, Hierarchical, LinUCB, load
from coterie.data.worlds.one_hot_world import OneHotWorld
from coterie.data.worlds.synthetic import WORLDS
from coterie.errors import ParameterError
from coterie.policies.base.parameters import scale_at
from tests.naive import CachedCAB, NaiveLinUCB
from tests.playing import agree, run_equals_one_by_one
from tests.worlds import Visit, visits

kinds = pytest.mark.parametrize("one_hot", [False, True], ids=["vectors", "items"])
sharing = pytest.mark.parametrize("shared", [False, True], ids=["multiple", "single"])
scoring = pytest.mark.parametrize("thompson", [False, True], ids=["bound", "draw"])


Forgetting = LinUCB | CAB
policies = pytest.mark.parametrize("kind", [LinUCB, CAB])


def make(one_hot: bool, kind: type[Forgetting] = LinUCB, **given: Any) -> Any:
    return kind(one_hot=True, **given) if one_hot else kind(n_features=4, **given)


@kinds
@policies
def test_an_old_payoff_counts_half_by_hand(one_hot: bool, kind: type[Forgetting]) -> None:
    """Paid 1, then 0, with a half-life of one payoff: M = 1 + 1/2 + 1, b = 1/2, so w = 1/5 and spread = √(1/2.5)."""
    policy = make(one_hot, kind, half_life=1, alpha=1.0)
    x: Any = "jazz" if one_hot else [1.0, 0.0, 0.0, 0.0]
    policy.learn("ann", x, 1.0)
    policy.learn("ann", x, 0.0)
    told = policy.explain("ann", [x])
    assert told.estimate[0] == pytest.approx(1 / 5)
    assert told.width[0] == pytest.approx(np.sqrt(np.log(4) / 2.5))


@kinds
@sharing
@scoring
def test_forgetting_equals_its_twin_choice_for_choice(one_hot: bool, shared: bool, thompson: bool) -> None:
    for seed, half_life in ((1, 1.0), (2, 7.5), (3, 100)):
        given: dict[str, Any] = {"alpha": 0.3, "shared": shared, "thompson": thompson, "seed": seed}
        policy = make(one_hot, half_life=half_life, **given)
        twin = NaiveLinUCB(4, 0.3, shared, thompson, seed, one_hot, keep=0.5 ** (1 / half_life))
        agree(policy, twin, visits(150, one_hot=one_hot, seed=seed))


@kinds
@pytest.mark.parametrize(("alpha", "gamma"), [(0.3, 0.2), (0.02, 0.3), (0.05, 1.0)])
def test_cab_forgets_as_its_twin_does(one_hot: bool, alpha: float, gamma: float) -> None:
    """With narrow bounds and a wide γ users learn together, and the payoffs of neighbours make theirs older too."""
    for seed, half_life in ((1, 1.0), (2, 7.5), (3, 100)):
        policy = make(one_hot, CAB, half_life=half_life, alpha=alpha, gamma=gamma)
        twin = CachedCAB(4, alpha, gamma, keep=0.5 ** (1 / half_life))

        def each(t: int, visit: Visit, policy: CAB = policy, twin: CachedCAB = twin) -> None:
            for one in (policy, twin):
                if t == 40:
                    one.add("waiting")
                if t == 80:
                    one.drop(3)
            near = policy.neighbours(visit.user, visit.contexts[0])
            assert set(near) == set(twin.neighbourhood(visit.user, visit.vectors[0]))

        agree(policy, twin, visits(120, one_hot=one_hot, seed=seed), each, close=1e-5)
        assert policy.learned < sum(twin.updates.values()) or gamma == 0.2


@kinds
@scoring
@pytest.mark.parametrize("alpha", [0.3, 0.02])
def test_cabs_compiled_loop_gives_what_one_by_one_gives(one_hot: bool, thompson: bool, alpha: float) -> None:
    def made() -> CAB:
        policy: CAB = make(one_hot, CAB, alpha=alpha, half_life=9, thompson=thompson)
        for user in ("waiting", 2, "too"):
            policy.add(user)
        return policy

    run_equals_one_by_one(made, one_hot, seed=4)


@kinds
def test_cab_chooses_as_draws_of_its_neighbours_posteriors_would(one_hot: bool) -> None:
    """A candidate's share is that with which the average of its neighbours' draws is the largest."""
    policy = make(one_hot, CAB, alpha=0.4, half_life=6, thompson=True)
    policy.add("waiting")
    for visit in visits(60, one_hot=one_hot, seed=1, n_users=4):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    visit = next(visits(1, one_hot=one_hot, seed=2))
    told, rng = policy.decide(0, visit.contexts), np.random.default_rng(3)
    assert told.members[0] > 2
    vectors, users = np.array(visit.vectors), [*policy.users]
    bare, rows = scale_at(policy.alpha, policy.learned), policy.models.ridges
    near = [set(policy.neighbours(0, x)) for x in visit.contexts]
    scores = np.zeros((4000, len(vectors)))
    items = rows.numbers(rows.read(visit.contexts))
    for user in users:
        # The covariance of x·w and y·w follows from the spreads of x, y and x + y; items are independent.
        row = policy.models._known.row(user)
        estimate, spread = rows.view(row, items)
        if one_hot:
            drawn = estimate + bare * spread * rng.standard_normal((4000, len(vectors)))
            drawn = drawn[:, [visit.contexts.index(x) for x in visit.contexts]]
        else:
            pairs = np.array(
                [[rows.view(row, (x + y)[None]).spread[0] ** 2 for x in vectors] for y in vectors]
            )
            covariance = (pairs - spread[:, None] ** 2 - spread**2) / 2
            drawn = rng.multivariate_normal(estimate, bare**2 * covariance, size=4000, method="eigh")
        scores += drawn * [user in others for others in near]
    shares = np.bincount(np.argmax(scores / [len(others) for others in near], axis=1), minlength=len(vectors))
    assert told.probability == pytest.approx(shares / 4000, abs=0.05 if one_hot else 0.15)


@kinds
@sharing
def test_the_compiled_loop_gives_what_one_by_one_gives(one_hot: bool, shared: bool) -> None:
    run_equals_one_by_one(lambda: make(one_hot, alpha=0.3, half_life=9, shared=shared), one_hot, seed=4)


@kinds
@policies
def test_a_file_holds_what_is_left(one_hot: bool, kind: type[Forgetting], tmp_path: Path) -> None:
    policy = make(one_hot, kind, half_life=5)
    for visit in visits(80, one_hot=one_hot, seed=2):
        policy.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    policy.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.parameters == policy.parameters
    for visit in visits(40, one_hot=one_hot, seed=3):
        assert again.choose(visit.user, visit.contexts) == policy.choose(visit.user, visit.contexts)
        for one in (policy, again):
            one.learn(visit.user, visit.contexts[0], visit.payoffs[0])
    if one_hot:
        policy.drop_item("item 1")
        assert policy.explain(0, ["item 1"]).estimate[0] == 0


def test_items_that_hardly_count_any_more_take_no_memory() -> None:
    policy = LinUCB(one_hot=True, half_life=2, shared=True)
    for t in range(1000):
        policy.learn("ann", t, 1.0)
    assert policy.rows.entries < 50


@kinds
def test_forgetting_pays_where_tastes_change_and_costs_little_where_they_do_not(one_hot: bool) -> None:
    """Every 400 rounds tastes turn around. Who never forgets is wrong for as long again."""
    earned = {}
    for changing in (True, False):
        for half_life in (None, 20):
            policy = make(one_hot, half_life=half_life, shared=True, alpha=0.3)
            total = 0.0
            for t, visit in enumerate(visits(2000, one_hot=one_hot, seed=5, n_groups=1, noise=0.05)):
                sign = -1 if changing and t // 400 % 2 else 1
                k = policy.choose(visit.user, visit.contexts)
                total += sign * visit.payoffs[k]
                policy.learn(visit.user, visit.contexts[k], sign * visit.payoffs[k])
            earned[changing, half_life] = total / 2000
    assert earned[True, 20] > earned[True, None] + 0.15
    assert earned[False, 20] > 0.85 * earned[False, None]


@pytest.mark.parametrize("half_life", [0, -1, float("nan"), "long"])
@pytest.mark.parametrize("kind", [LinUCB, CAB, Hierarchical])
def test_a_half_life_that_cannot_be_is_refused(half_life: Any, kind: type[Any]) -> None:
    with pytest.raises(ParameterError, match="half_life is"):
        kind(one_hot=True, half_life=half_life)


@pytest.mark.parametrize(
    ("kind", "less"),
    [(LinUCB, 0.9), (CAB, 0.85), (Hierarchical, 0.8)],
    ids=["LinUCB", "CAB", "Hierarchical"],
)
def test_in_the_drifting_world_forgetting_pays(kind: type[Any], less: float) -> None:
    """Regret of two runs of 10,000 rounds, each with and without a half-life of 10 payoffs of a user."""
    world = WORLDS["drifting"]()
    assert isinstance(world, OneHotWorld)
    regret = dict.fromkeys((None, 10), 0.0)
    for seed in range(2):
        rounds = list(world.rounds(10_000, seed))
        lists, payoffs, expected = (
            np.array([getattr(sent, name) for sent in rounds]) for name in ("contexts", "payoffs", "expected")
        )
        batch = Batch([sent.user for sent in rounds], lists, list(range(world.n_items)), payoffs)
        for half_life in regret:
            choice = kind(one_hot=True, half_life=half_life).run(batch).choice
            regret[half_life] += float((expected.max(axis=1) - expected[np.arange(10_000), choice]).sum())
    assert regret[10] < less * regret[None], regret
