"""Hierarchical: by hand, against its twin, against brute force, on worlds drawn from its own model."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import coterie
from coterie import Candidates, Hierarchical
from coterie.errors import ContextError, FileError, ParameterError, PayoffError, UserError
from coterie.models._kernels.hierarchy import arrays, loop
from coterie.models._kernels.hierarchy.population import view
from coterie.models._kernels.hierarchy.visits import visit_rows
from coterie.models.hierarchy import refit
from coterie.models.hierarchy.drift import HalfLife, make_drift
from coterie.models.hierarchy.friends import Friends
from coterie.models.hierarchy.plain import PlainModel
from coterie.models.hierarchy.population import Population
from coterie.policies.base.batch import Batch
from tests.naive import NaiveHierarchical

Floats = NDArray[np.float64]
KINDS = ("features", "few ids", "many ids", "both")


def declared(policy: Hierarchical) -> PlainModel:
    assert isinstance(policy._model, PlainModel)
    return policy._model


def make(kind: str, **given: Any) -> Hierarchical:
    n_features = 3 if kind in ("features", "both") else None
    return Hierarchical(n_features=n_features, one_hot=kind != "features", **given)


def world(
    kind: str, seed: int, n_rounds: int, n_users: int = 40
) -> Iterator[tuple[str, NDArray[np.int64], Floats, Floats]]:
    """Two kinds of users who like different items; yields user, positions of items, all features, payoffs."""
    rng = np.random.default_rng(seed)
    n_items = {"many ids": 90, "few ids": 20}.get(
        kind, 12
    )  # 20: the entries of items get more room on the way
    features = rng.normal(size=(n_items, 3)) * 2.0
    taste = rng.normal(size=(2, 3))
    for _ in range(n_rounds):
        who = int(rng.integers(n_users))
        shown = rng.permutation(n_items)[:4]
        chance = 1 / (1 + np.exp(-(features[shown] @ taste[who % 2])))
        yield f"user {who}", shown, features, (rng.random(4) < chance).astype(float)


def contexts_of(kind: str, shown: NDArray[np.int64], features: Floats) -> Any:
    if kind == "features":
        return features[shown]
    ids = [f"item {i}" for i in shown]
    return Candidates(ids, features[shown]) if kind == "both" else ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("seed", "explore", "half_life"),
    [(1, 1.0, None), (2, 0.3, "learned"), (3, 1.0, 6.5), (4, 1.0, "learned")],
)
def test_hierarchical_equals_its_twin_choice_for_choice(
    kind: str, seed: int, explore: float, half_life: HalfLife
) -> None:
    policy = make(kind, explore=explore, seed=seed, half_life=half_life)
    twin = NaiveHierarchical(policy.n_features, policy.one_hot, explore, half_life)
    n_users = 6 if seed == 4 else 40
    for t, (user, shown, features, payoffs) in enumerate(world(kind, seed, 450, n_users)):
        decision = policy.decide(user, contexts_of(kind, shown, features))
        plain = [(f"item {i}", features[i]) for i in shown]
        score, width = twin.scores(user, plain)
        assert decision.score == pytest.approx(score, abs=1e-6)
        assert decision.near_width / 2 * explore == pytest.approx(width, abs=1e-6)
        k = decision.choice
        if seed == 1 and t >= 300 and t % 40 == 0:
            payoffs = payoffs + 1e5  # far beyond all others
        if seed == 4 and t >= 150:
            payoffs = 1 - payoffs  # all tastes turn around
        policy.learn(user, contexts_of(kind, shown, features)[k], payoffs[k])
        twin.learn(user, f"item {shown[k]}", features[shown[k]], payoffs[k])
    assert twin.drift is None or policy.present_half_life == (twin.drift.half_life or None)
    assert seed != 4 or "ids" in kind or policy.present_half_life is not None
    assert declared(policy).many.n_groups == len(twin.many.prior.share)
    assert bool(declared(policy).deciding[0]) == (twin.few is not None) == (kind == "few ids")


@pytest.mark.parametrize("kind", KINDS)
def test_with_friends_hierarchical_equals_its_twin_choice_for_choice(kind: str) -> None:
    """Users of a kind are friends of the next two of their kind; on the way, edges come, go and change weight."""
    names = [f"user {i}" for i in range(40)]
    edges = {(names[i], names[(i + step) % 40]): 1.0 for i in range(0, 40, 3) for step in (2, 4)}
    policy = make(kind, seed=1, friends=edges)
    twin = NaiveHierarchical(policy.n_features, policy.one_hot, 1.0)
    for name in policy.users:
        twin.add(name)
    for name in policy.users:
        twin.set_friends(name, policy.friends_of(name))
    for t, (user, shown, features, payoffs) in enumerate(world(kind, 1, 300)):
        if t in (60, 150):
            for one in (policy, twin):
                one.set_friends("user 3", {"user 5": 0.5, "user 9": 2.0} if t == 60 else {})
        decision = policy.decide(user, contexts_of(kind, shown, features))
        score, _ = twin.scores(user, [(f"item {i}", features[i]) for i in shown])
        assert decision.score == pytest.approx(score, abs=1e-6)
        k = decision.choice
        policy.learn(user, contexts_of(kind, shown, features)[k], payoffs[k])
        twin.learn(user, f"item {shown[k]}", features[shown[k]], payoffs[k])
    model, slow = declared(policy).population, twin.few or twin.many
    assert model.model.prior.noise[arrays.RHO_] == pytest.approx(slow.prior.rho, abs=1e-6)
    assert abs(slow.prior.rho) > 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half_life", [None, 4])
def test_the_compiled_loop_gives_what_one_by_one_gives(kind: str, half_life: float | None) -> None:
    rounds = list(world(kind, 3, 400))
    features = rounds[0][2]
    items = contexts_of(kind, np.arange(len(features)), features)
    lists, payoffs = np.array([r[1] for r in rounds]), np.array([r[3] for r in rounds])
    fast, slow = (make(kind, seed=5, half_life=half_life) for _ in range(2))
    served = np.arange(400) % 4
    log = Batch([r[0] for r in rounds], lists, items, payoffs[np.arange(400), served], served)
    for batch in (Batch([r[0] for r in rounds], lists, items, payoffs), log):
        outcome = fast.run(batch)
        for t, (user, shown, _, paid) in enumerate(rounds):
            shown_to = contexts_of(kind, shown, features)
            k = slow.choose(user, shown_to)
            assert outcome.choice[t] == k
            if batch.served is None or served[t] == k:
                slow.learn(user, shown_to[k], paid[k])
    for name, tensor in fast.tensors().items():
        assert tensor.tobytes() == slow.tensors()[name].tobytes(), name


CONSTANT = arrays.Contexts(np.empty((1, 0)), np.empty(0, dtype=np.int64))  # one item without features


def one_user(keep: float) -> loop.Hierarchy:
    """Return a model of one user over the constant alone: κ = 0.1, prior variance 0.05, and the certain mean 0.5."""
    model = Population(1, keep=keep).model
    model.prior.means[0, 0] = 0.5
    model.prior.doubt[:] = 0.0
    model.prior.noise[arrays.K_] = 0.1
    model.prior.covariance[0, 0], model.prior.precision[0, 0] = 0.05, 20.0
    model.place[arrays.ROWS] = 1
    pairs = declared(Hierarchical(one_hot=True)).pairs.rows
    return loop.Hierarchy(
        Population(1, unit=True).model, model, np.array([0]), pairs, False, make_drift(None)
    )


def viewed(hierarchy: loop.Hierarchy) -> tuple[float, float]:
    """Return the user's estimate and its variance."""
    parts = np.empty((1, 6))
    chance = view(hierarchy.many, hierarchy.pairs, 0, CONSTANT, np.arange(1), parts)
    assert chance.tolist() == [1.0]
    return parts[0, :2].sum(), parts[0, 4:].sum()


def test_one_user_by_hand() -> None:
    """Two payoffs, 1 and 0, make S = 2 and b = 1: C = 1 / (1/0.05 + 2/0.1) = 1/40, m = C (0.5/0.05 + 1/0.1) = 0.5.

    A third payoff of 1 makes C = 1/50 and m = (10 + 20) / 50 = 0.6.
    """
    hierarchy = one_user(keep=1.0)
    expected = {2: (0.5, 1 / 40), 3: (0.6, 1 / 50)}
    for n, payoff in enumerate((1.0, 0.0, 1.0), start=1):
        loop.learn_one(hierarchy, 0, CONSTANT, 0, payoff)
        if n in expected:
            assert viewed(hierarchy) == pytest.approx(expected[n])


def test_an_old_payoff_counts_half_by_hand() -> None:
    """With a half-life of one payoff: payoffs 1 and 0 make S = 1/2 + 1 and b = 1/2.

    C = 1 / (1/0.05 + 1.5/0.1) = 1/35 and m = C (0.5/0.05 + 0.5/0.1) = 15/35.
    """
    hierarchy = one_user(keep=0.5)
    for payoff in (1.0, 0.0):
        loop.learn_one(hierarchy, 0, CONSTANT, 0, payoff)
    assert viewed(hierarchy) == pytest.approx((15 / 35, 1 / 35))


def facts(policy: Hierarchical, seed: int, n_payoffs: int, kind: str) -> list[tuple[int, Floats, int, float]]:
    """Learn payoffs and return them as (user, x, item, payoff)."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(6, 3))
    told = []
    for _ in range(n_payoffs):
        who, item, payoff = int(rng.integers(4)), int(rng.integers(6)), float(rng.random())
        context = contexts_of(kind, np.array([item]), features)[0]
        policy.learn(who, context, payoff)
        x = np.concatenate([[1.0], features[item] if kind != "many ids" else []])
        told.append((declared(policy).roster.row(who), x, item, payoff))
    return told


def brute(
    policy: Hierarchical,
    told: list[tuple[int, Floats, int, float]],
    row: int,
    x: Floats,
    item: int,
    ids: bool,
) -> tuple[float, float]:
    """Condition the joint normal of all payoffs and of one more on what was paid. Nothing is approximated."""
    population = declared(policy).many
    prior, d = population.model.prior, population.n_used
    kappa, phi, tau, epsilon = prior.noise[:4]
    sigma = prior.covariance[:d, :d]
    broad = refit.mean_covariance(population, prior)
    rows = [*told, (row, x, item, 0.0)]
    n = len(rows)
    cov, mean = np.zeros((n, n)), np.full(n, population.model.paid[0] + (epsilon if ids else 0.0))
    for a, (u, s, i, _) in enumerate(rows):
        for b, (v, t, j, _) in enumerate(rows):
            cov[a, b] = s @ broad @ t + (s @ sigma @ t if u == v else 0.0)
            if ids:
                cov[a, b] += (tau if i == j else 0.0) + (phi * kappa if (u, i) == (v, j) else 0.0)
    noise = np.eye(n) * ((1 - phi) * kappa if ids else kappa)
    noise[-1, -1] = 0.0
    seen = np.array([y for *_, y in told])
    K = (cov + noise)[:-1, :-1]
    gain = np.linalg.solve(K, cov[:-1, -1])
    return float(mean[-1] + gain @ (seen - mean[:-1])), float(cov[-1, -1] - gain @ cov[:-1, -1])


def hold_variances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passes compute no new variances, effects or groups."""
    for name in ("new_variances", "new_effects", "split"):
        monkeypatch.setattr(refit, name, lambda *_: None)


@pytest.mark.parametrize("n_payoffs", [1, 5, 40])
def test_posteriors_of_features_equal_brute_force_conditioning(
    n_payoffs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With variances held fixed and one group, nothing is approximated, the population's mean included.

    The variances depend on the features' scale until it settles, so the sums are taken once more at the end.
    """
    hold_variances(monkeypatch)
    policy = Hierarchical(n_features=3)
    told = facts(policy, 7, n_payoffs, "features")
    population = declared(policy).many
    refit.next_pass(population)
    refit.start_again(population, declared(policy).pairs.rows)
    rng = np.random.default_rng(0)
    for row in [*range(population.n_rows), -1]:
        for _ in range(3):
            x = rng.normal(size=3)
            contexts = arrays.Contexts(x[None, :], np.empty(0, dtype=np.int64))
            parts, _ = declared(policy).view(row, contexts)
            if n_payoffs == 1:
                x[:] = population.model.seen[0, 1:4]  # their scale is not known yet: they count as their mean
            mean, variance = brute(policy, told, row, np.append(1.0, x), -1, ids=False)
            assert parts[0, :4].sum() == pytest.approx(mean, abs=1e-9)
            assert parts[0, 4:].sum() == pytest.approx(variance, abs=1e-9)


@pytest.mark.parametrize(("kind", "mean_off", "sd_off"), [("both", 0.05, 0.25), ("many ids", 0.05, 0.25)])
def test_posteriors_with_item_effects_are_close_to_brute_force(
    kind: str, mean_off: float, sd_off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users and items cross, so blocks are updated one at a time: here is how far that is from the exact answer.

    `mean_off` is in payoffs, over estimates that range over 0 to 1; `sd_off` is relative. Both are averages.
    """
    hold_variances(monkeypatch)
    policy = make(kind)
    told = facts(policy, 3, 16, kind)
    off, wide = [], []
    features = np.random.default_rng(3).normal(size=(6, 3))
    declared(policy).deciding[0] = 0
    for row in range(4):
        for item in range(6):
            table = features[[item]] if kind == "both" else np.empty((1, 0))
            number = declared(policy).pairs.numbers([f"item {item}"])
            parts, _ = declared(policy).view(row, arrays.Contexts(table, number))
            x = np.concatenate([[1.0], table[0]])
            mean, variance = brute(policy, told, row, x, item, ids=True)
            off.append(abs(parts[0, :4].sum() - mean))
            wide.append(abs(math.sqrt(parts[0, 4:].sum() / variance) - 1))
    assert np.mean(off) < mean_off
    assert np.mean(wide) < sd_off


def test_a_refit_never_lowers_the_likelihood() -> None:
    """Fixed payoffs, many passes in turn, groups included; the likelihood is that of all payoffs by brute force.

    The weak prior counts as data, so it is part of what may not fall: WEAK users at their start, WEAK payoffs of
    half of the payoffs' variance, one user for each group. With one group and no means' prior this is the likelihood
    itself.
    """
    rng = np.random.default_rng(1)
    policy = Hierarchical(n_features=2)
    told = []
    for t in range(60):
        who, x = t % 12, rng.normal(size=2)
        payoff = float(np.clip(0.3 * x[0] * (1 if who % 2 else -1) + 0.1 * rng.normal(), -1, 1))
        policy.learn(who, x, payoff)
        told.append((declared(policy).roster.row(who), np.append(1.0, x), payoff))
    population = declared(policy).many
    model = population.model
    model.place[arrays.TRIAL] = 0
    model.place[arrays.NEXT] = 10**9

    def objective() -> float:
        prior, total = model.prior, 0.0
        kappa, sigma, mu = prior.noise[0], prior.covariance, prior.means[0]
        for row in range(population.n_rows):
            X = np.array([x for u, x, _ in told if u == row])
            y = np.array([y for u, _, y in told if u == row])
            K = X @ sigma @ X.T + kappa * np.eye(len(y))
            off = y - X @ mu
            total -= 0.5 * (np.linalg.slogdet(K)[1] + off @ np.linalg.solve(K, off))
        start = refit.start_covariance(population)
        total -= 2.5 * (np.linalg.slogdet(sigma)[1] + np.trace(np.linalg.solve(sigma, start)))
        total -= 2.5 * (math.log(kappa) + arrays.NOISE * refit.payoff_variance(population) / kappa)
        off = mu - np.array([model.paid[0], 0.0, 0.0])
        return float(total) - 0.5 * float(
            off @ np.linalg.solve(refit.mean_covariance(population, model.prior), off)
        )

    refit.next_pass(population)
    refit.start_again(population, declared(policy).pairs.rows)  # back to the start
    values = []
    for _ in range(20):
        refit.next_pass(population)
        visit_rows(model, declared(policy).pairs.rows, 0, population.n_rows)
        refit.end_pass(population, 0)
        values.append(objective())
    assert (np.diff(values) > -1e-9).all()
    assert values[-1] > values[0] + 0.1


def drawn_world(seed: int, n_users: int, visits: int, groups: int) -> tuple[list[Any], Floats, Floats]:
    """Draw users and payoffs from the model: two features, noise variance 0.04."""
    rng = np.random.default_rng(seed)
    sigma = np.array([[0.02, 0.0, 0.0], [0.0, 0.06, 0.03], [0.0, 0.03, 0.04]])
    centres = np.array([[0.1, 0.0, 0.0]]) if groups == 1 else np.array([[0.1, 0.6, -0.3], [0.1, -0.6, 0.3]])
    told = []
    for user in range(n_users):
        w = rng.multivariate_normal(centres[user % groups], sigma)
        for _ in range(visits):
            x = rng.normal(size=2) * 0.5
            told.append((user, x, float(np.clip(np.append(1.0, x) @ w + 0.2 * rng.normal(), -1, 1))))
    return [told[i] for i in rng.permutation(len(told))], sigma, centres


def test_variances_are_recovered_from_a_world_of_the_model() -> None:
    """400 users with 12 payoffs each: variances within a quarter, or 0.01, of the truth, the mean within 0.05."""
    told, sigma, centres = drawn_world(4, 400, 12, groups=1)
    policy = Hierarchical(n_features=2)
    policy.learn_many(*(list(column) for column in zip(*told, strict=True)))
    prior = declared(policy).many.model.prior
    assert declared(policy).many.n_groups == 1
    assert np.abs(prior.covariance - sigma) == pytest.approx(0, abs=0.015)
    assert prior.noise[0] == pytest.approx(0.04, rel=0.1)
    assert prior.means[0] == pytest.approx(centres[0], abs=0.05)


def test_groups_are_recovered_from_a_world_of_the_model() -> None:
    """Two groups: their means within 0.1, every user in the right one but for 5 in 100."""
    told, _, centres = drawn_world(5, 300, 20, groups=2)
    policy = Hierarchical(n_features=2)
    policy.learn_many(*(list(column) for column in zip(*told, strict=True)))
    groups = policy.groups()
    assert len(groups) == 2
    found = sorted(declared(policy).many.model.prior.means[:2].tolist(), key=lambda m: -m[1])
    assert np.array(found) == pytest.approx(centres, abs=0.1)
    wrong = min(
        sum((int(str(user)) % 2) != (g ^ flip) for g, group in enumerate(groups) for user in group.users)
        for flip in (0, 1)
    )
    assert wrong <= 15
    assert groups[0].share + groups[1].share == pytest.approx(1)
    decision = policy.explain(groups[1].users[0], np.eye(2))
    assert decision.groups is not None
    assert int(np.argmax(decision.groups)) == 1
    assert {feature for feature, _ in groups[0].differs} == {0, 1}


def choices(
    kind: str, *, factor: float = 1.0, shift: float = 0.0, worth: float = 1.0, base: float = 0.0
) -> list[int]:
    """Play a world with features times `factor` plus `shift`, and payoffs times `worth` plus `base`."""
    policy, found = make(kind, seed=2), []
    for user, shown, features, payoffs in world(kind, 6, 300):
        shown_to = contexts_of(kind, shown, features * factor + shift)
        k = policy.choose(user, shown_to)
        policy.learn(user, shown_to[k], payoffs[k] * worth + base)
        found.append(k)
    return found


@pytest.mark.parametrize("kind", ["features", "both"])
@pytest.mark.parametrize(("factor", "shift"), [(1024.0, 0.0), (1 / 64, 0.0), (1.0, 8.0), (4.0, -32.0)])
def test_the_origin_and_the_scale_of_features_do_not_matter(kind: str, factor: float, shift: float) -> None:
    assert choices(kind, factor=factor, shift=shift) == choices(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("worth", "base"), [(1 / 128, 0.0), (0.5, -0.75), (2.0, -1.0)])
def test_the_origin_and_the_scale_of_payoffs_do_not_matter(kind: str, worth: float, base: float) -> None:
    assert choices(kind, worth=worth, base=base) == choices(kind)


def earned(unit: float, seed: int) -> float:
    """Return the share of the possible payoffs, with the first of five features in other units."""
    rng = np.random.default_rng(seed)
    taste, units = rng.normal(size=5), np.array([unit, 1, 1, 1, 1])
    lists = rng.normal(size=(1500, 6, 5))
    means = np.clip(0.5 + 0.15 * lists @ taste, 0, 1)
    payoffs = (rng.random((1500, 6)) < means).astype(float)
    candidates = np.arange(9000).reshape(1500, 6)
    users = [f"user {u}" for u in rng.integers(30, size=1500)]
    outcome = Hierarchical(n_features=5, seed=seed).run(
        Batch(users, candidates, lists.reshape(-1, 5) * units, payoffs)
    )
    chosen = means[np.arange(1500), outcome.choice]
    return float((chosen - means.mean(axis=1)).sum() / (means.max(axis=1) - means.mean(axis=1)).sum())


@pytest.mark.parametrize("unit", [100.0, 10_000.0, 0.01])
def test_one_feature_in_other_units_costs_little(unit: float) -> None:
    assert np.mean([earned(unit, seed) - earned(1.0, seed) for seed in range(10)]) > -0.02


def visit_once(seed: int, n_rounds: int = 4000) -> tuple[float, float, int]:
    """Play 8 actions, each user once; return regret over random's, the best's share at the end, and groups."""
    rng = np.random.default_rng(seed)
    means = rng.permutation([0.49, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05])
    lists = np.tile(np.arange(8), (n_rounds, 1))
    policy = Hierarchical(one_hot=True, seed=seed)
    payoffs = (rng.random((n_rounds, 8)) < means).astype(float)
    outcome = policy.run(Batch(list(range(n_rounds)), lists, [f"action {i}" for i in range(8)], payoffs))
    lost = means.max() - means
    best = float((outcome.choice[-500:] == means.argmax()).mean())
    return (
        float(lost[outcome.choice].sum() / (n_rounds * lost.mean())),
        best,
        declared(policy).population.n_groups,
    )


def test_it_does_not_stay_with_a_bad_action_if_every_visitor_is_new() -> None:
    """No payoff reduces the variance between users who never return, so it must not count as a reason to explore."""
    found = [visit_once(seed) for seed in range(8)]
    assert max(regret for regret, _, _ in found) < 0.25
    assert np.mean([best for _, best, _ in found]) > 0.8
    assert {groups for _, _, groups in found} == {
        1
    }  # nothing can be learned of groups of users who never return


def test_an_anonymous_visitor_teaches_the_population_and_leaves_nothing_behind() -> None:
    policy = make("few ids")
    for t in range(200):
        policy.learn(None, ["good", "bad"][t % 2], float(t % 2 == 0))
    assert list(policy.users) == []
    assert policy.learned == 200
    decision = policy.explain(None, ["good", "bad"])
    assert decision.estimate == pytest.approx([1, 0], abs=0.1)
    assert policy.explain("somebody", ["good", "bad"]).estimate == pytest.approx(decision.estimate)
    lists = np.tile([0, 1], (20, 1))
    outcome = policy.run(Batch([None] * 20, lists, ["good", "bad"], np.tile([1.0, 0.0], (20, 1))))
    assert (outcome.choice == 0).mean() > 0.8
    assert list(policy.users) == []


def test_choices_are_drawn_by_the_probabilities() -> None:
    policy = make("features", seed=1)
    for user, shown, features, payoffs in world("features", 1, 12):
        policy.learn(user, features[shown[0]], payoffs[0])
    shown_to = features[shown]
    chances = policy.explain("user 1", shown_to).probability
    assert chances is not None
    assert chances.sum() == pytest.approx(1)
    assert chances.min() >= policy.floor / 4
    drawn = np.bincount([policy.choose("user 1", shown_to) for _ in range(4000)], minlength=4) / 4000
    assert (np.abs(drawn - chances) < 5 * np.sqrt(chances / 4000) + 0.001).all()
    greedy = make("features", explore=0, floor=0)
    assert greedy.explain("user 1", shown_to).probability.tolist() == [1, 0, 0, 0]


def test_explain_tells_the_parts_of_each_score() -> None:
    policy = make("both")
    rounds = list(world("both", 1, 60))
    for user, shown, features, payoffs in rounds:
        policy.learn(user, contexts_of("both", shown, features)[0], payoffs[0])
    user, shown, features, _ = rounds[-1]
    told = policy.explain(user, contexts_of("both", shown, features))
    assert told.parts is not None
    assert list(told.parts) == ["population", "own", "effect", "pair", "sd"]
    total = sum(told.parts[name] for name in ("population", "own", "effect", "pair"))
    assert told.estimate == pytest.approx(total)
    assert told.parts["pair"][0] != 0.0  # this user has paid for the first item
    assert told.groups is not None
    assert told.groups.sum() == pytest.approx(1)
    assert "population" in str(told)
    assert "item 3" in str(policy.explain(user, contexts_of("both", np.array([3, 4]), features)))


def test_a_forgotten_user_is_a_stranger_and_the_population_stays() -> None:
    policy = make("both")
    for user, shown, features, payoffs in world("both", 2, 200):
        policy.learn(user, contexts_of("both", shown, features)[0], payoffs[0])
    means = declared(policy).many.model.prior.means.copy()
    last = policy.users[-1]
    shown = contexts_of("both", np.arange(4), features)
    kept = policy.explain(last, shown).estimate
    stranger = policy.explain("nobody", shown).estimate
    policy.drop("user 3")
    assert "user 3" not in policy.users
    assert policy.explain("user 3", shown).estimate == pytest.approx(stranger)
    assert policy.explain(last, shown).estimate == pytest.approx(kept)
    assert (declared(policy).many.model.prior.means == means).all()
    with pytest.raises(UserError, match="user 3"):
        policy.drop("user 3")


@pytest.mark.parametrize("kind", ["few ids", "features"])
def test_what_the_population_learned_outlives_its_users(kind: str) -> None:
    """Everybody likes the first item and not the second; then all leave, and one newcomer plays on other items."""
    policy = make(kind)
    contexts: Any = ["good", "bad", "other"] if kind == "few ids" else np.eye(3)
    for t in range(1500):
        policy.learn(t % 50, contexts[t % 2], float(t % 2 == 0))
    before = policy.explain("stranger", contexts[:2]).estimate
    for user in list(policy.users):
        policy.drop(user)
    for t in range(400):
        policy.learn("new", contexts[2], float(t % 3 == 0))
    after = policy.explain("stranger", contexts[:2]).estimate
    assert before == pytest.approx([1, 0], abs=0.1)
    assert after == pytest.approx(before, abs=0.1)


def test_neighbours_are_those_who_cannot_be_told_apart() -> None:
    policy = Hierarchical(one_hot=True)
    for _ in range(30):
        for user, item, payoff in (
            ("ann", "jazz", 1),
            ("bob", "jazz", 1),
            ("carl", "jazz", 0),
            ("carl", "news", 1),
        ):
            policy.learn(user, item, payoff)
    assert policy.neighbours("ann", "jazz") == ["ann", "bob"]
    assert policy.neighbours("carl", "jazz") == ["carl"]
    assert set(policy.neighbours("dora", "jazz")) >= {"dora"}


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load_go_on_in_the_middle_of_a_pass(kind: str, tmp_path: Any) -> None:
    policy = make(kind, seed=3)
    rounds = list(world(kind, 8, 330))
    twin = policy
    for t, (user, shown, features, payoffs) in enumerate(rounds):
        if t == 170:
            policy.save(tmp_path / "policy")
            twin = coterie.load(tmp_path / "policy")  # type: ignore[assignment]
        shown_to = contexts_of(kind, shown, features)
        k = policy.choose(user, shown_to)
        if twin is not policy:
            assert twin.choose(user, shown_to) == k
            twin.learn(user, shown_to[k], payoffs[k])
        policy.learn(user, shown_to[k], payoffs[k])
    assert twin is not policy


def test_bad_input_is_refused_and_changes_nothing() -> None:
    both = make("both")
    shown = Candidates(["a", "b"], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    both.learn("ann", shown[0], 1.0)
    before = {name: tensor.tobytes() for name, tensor in both.tensors().items()}
    with pytest.raises(ContextError, match="expected Candidates"):
        both.choose("ann", ["a", "b"])
    with pytest.raises(ContextError, match="expected an Action such as"):
        both.learn("ann", "a", 1.0)
    with pytest.raises(ContextError, match="2 features"):
        both.choose("ann", Candidates(["a"], [[1.0, 0.0]]))
    with pytest.raises(PayoffError, match=r"1500000000\.0"):
        both.learn("new", shown[1], 1.5e9)
    with pytest.raises(UserError, match="unhashable"):
        both.learn([], shown[1], 1.0)  # type: ignore[arg-type]
    assert {name: tensor.tobytes() for name, tensor in both.tensors().items()} == before
    with pytest.raises(ParameterError, match="explore is -1"):
        Hierarchical(one_hot=True, explore=-1)
    with pytest.raises(ParameterError, match=r"floor is 1\.5, expected a share"):
        Hierarchical(one_hot=True, floor=1.5)
    with pytest.raises(ContextError, match="NaN"):
        Hierarchical(n_features=1).choose("ann", [[np.nan]])


def befriended(kind: str, n_rounds: int) -> Hierarchical:
    """Return a policy whose users are friends of the next two of their kind, after some payoffs."""
    edges = [(f"user {i}", f"user {i + step}") for i in range(0, 34, 3) for step in (2, 4)]
    policy = make(kind, seed=3, friends=edges)
    for user, shown, features, payoffs in world(kind, 8, n_rounds):
        policy.learn(user, contexts_of(kind, shown, features)[0], payoffs[0])
    return policy


def test_a_user_who_was_never_seen_is_judged_by_the_friends_by_hand() -> None:
    """Ann has no payoffs. Her friend Bob has 1, 0 and 1, which around the mean 0.5 sum to 0.5.

    v = (1/0.05 + 3/0.1)⁻¹ · 0.5/0.1 = 0.1, so with ρ = 0.8 Ann is at 0.58. A payoff of 0 counts 10 of 30 for her:
    0.58 − 0.58/3. Bob then hears of Ann: v = −0.5/0.1/30 = −1/6, so his prior mean is 0.5 − 0.8/6.
    """
    alone, friends = one_user(keep=1.0), Friends()
    alone.many.place[arrays.ROWS] = 2
    for payoff in (1.0, 0.0, 1.0):
        loop.learn_one(alone, 1, CONSTANT, 0, payoff)
    friends.set(0, {1: 1.0})
    hierarchy = alone._replace(many=alone.many._replace(friends=friends.table))
    hierarchy.many.prior.noise[arrays.RHO_] = 0.8
    assert viewed(hierarchy)[0] == pytest.approx(0.58)
    loop.learn_one(hierarchy, 0, CONSTANT, 0, 0.0)
    assert viewed(hierarchy)[0] == pytest.approx(0.58 - 0.58 / 3)
    parts = np.empty((1, 6))
    view(hierarchy.many, hierarchy.pairs, 1, CONSTANT, np.arange(1), parts)
    assert parts[0, :2].sum() == pytest.approx((20 * (0.5 - 0.8 / 6) + 30 * 2 / 3) / 50)


@pytest.mark.parametrize("kind", KINDS)
def test_friends_are_in_files_and_in_parts(kind: str, tmp_path: Any) -> None:
    policy = befriended(kind, 150)
    policy.drop("user 6")
    policy.save(tmp_path / "policy")
    again, by_parts = coterie.load(tmp_path / "policy"), make(kind, seed=3)
    copied = {name: [kept.part(key) for key in kept.keys()] for name, kept in policy.parts().items()}  # noqa: SIM118
    by_parts.restore_parts(policy.head(), copied)
    by_parts.learned = policy.learned
    for twin in (again, by_parts):
        assert isinstance(twin, Hierarchical)
        assert twin.parameters["friends"] == policy.parameters["friends"]
        for name, tensor in policy.tensors().items():
            assert tensor.tobytes() == twin.tensors()[name].tobytes(), name
    for user, shown, features, payoffs in world(kind, 9, 60):
        for one in (policy, again, by_parts):
            one.learn(user, contexts_of(kind, shown, features)[0], payoffs[0])
    for twin in (again, by_parts):
        for name, tensor in policy.tensors().items():
            assert tensor.tobytes() == twin.tensors()[name].tobytes(), name


def test_a_dropped_user_is_nobodys_friend() -> None:
    policy = befriended("features", 200)
    assert set(policy.friends_of("user 6")) == {"user 8", "user 10"}
    assert policy.friends_of("user 8")["user 6"] == 1.0
    last = policy.users[-1]
    kept = policy.friends_of(last)
    policy.drop("user 6")
    assert policy.friends_of("user 6") == {}
    assert all("user 6" not in policy.friends_of(user) for user in policy.users)
    assert policy.friends_of(last) == {name: weight for name, weight in kept.items() if name != "user 6"}
    tensors = policy.tensors()
    assert len(tensors["friend_row"]) == sum(len(policy.friends_of(user)) for user in policy.users)
    policy.add("user 6")
    assert policy.friends_of("user 6") == {}


def test_friends_go_through_undeclared_actions_as_through_declared_ones() -> None:
    edges = [(f"user {i}", f"user {i + 2}") for i in range(0, 38, 3)]
    declared_one, other = make("few ids", seed=1, friends=edges), Hierarchical(seed=1, friends=edges)
    for user, shown, features, payoffs in world("few ids", 4, 150):
        ids = contexts_of("few ids", shown, features)
        assert other.explain(user, ids).score == pytest.approx(
            declared_one.explain(user, ids).score, abs=1e-9
        )
        for one in (declared_one, other):
            one.learn(user, ids[0], payoffs[0])


@pytest.mark.parametrize("kind", ["features", "few ids"])
def test_the_compiled_loop_with_friends_gives_what_one_by_one_gives(kind: str) -> None:
    rounds = list(world(kind, 3, 200))
    features = rounds[0][2]
    items = contexts_of(kind, np.arange(len(features)), features)
    lists, payoffs = np.array([r[1] for r in rounds]), np.array([r[3] for r in rounds])
    edges = [(f"user {i}", f"user {i + 2}") for i in range(0, 38, 3)]
    fast, slow = (make(kind, seed=5, friends=edges) for _ in range(2))
    outcome = fast.run(Batch([r[0] for r in rounds], lists, items, payoffs))
    for t, (user, shown, _, paid) in enumerate(rounds):
        shown_to = contexts_of(kind, shown, features)
        k = slow.choose(user, shown_to)
        assert outcome.choice[t] == k
        slow.learn(user, shown_to[k], paid[k])
    for name, tensor in fast.tensors().items():
        assert tensor.tobytes() == slow.tensors()[name].tobytes(), name


def test_friends_who_cannot_be_are_refused_and_change_nothing() -> None:
    policy = Hierarchical(friends=[("ann", "bob")])
    refused: list[tuple[Any, str]] = [
        (["ann"], "itself"),
        ("bob", "single string"),
        ({"carl": 0}, "more than 0"),
        ([[]], "unhash"),
    ]
    for friends, said in refused:
        with pytest.raises(ParameterError, match=said):
            policy.set_friends("ann", friends)
    with pytest.raises(UserError, match="anonymous"):
        policy.set_friends("ann", [None])
    with pytest.raises(ParameterError, match="friends"):
        Hierarchical(friends=[("ann", "ann")])
    assert policy.parameters["friends"] == {"ann": {"bob": 1.0}, "bob": {"ann": 1.0}}


def test_a_file_whose_edges_contradict_each_other_is_refused() -> None:
    tensors = befriended("features", 30).tensors()
    for name, value in (
        ("friend_of", 10**6),
        ("friend_of", -1),
        ("friend_weight", -1.0),
        ("friend_weight", 3.0),
    ):
        damaged = tensors | {name: tensors[name].copy()}
        damaged[name][0] = value
        with pytest.raises(FileError, match="friends in the model file"):
            make("features").restore(damaged)


def test_friends_say_much_where_they_are_alike_and_nothing_where_they_are_not() -> None:
    """Pairs of friends with the same taste, or with independent ones: ρ, and how well a new friend is predicted."""
    found = {}
    for alike in (True, False):
        rng = np.random.default_rng(2)
        taste = rng.normal(size=(100, 2))
        taste[50:] = taste[:50] if alike else rng.normal(size=(50, 2))
        policy = Hierarchical(n_features=2, friends=[(i, 50 + i) for i in range(50)])
        for _ in range(3000):
            who, x = int(rng.integers(100)), rng.normal(size=2)
            policy.learn(who, x, float(taste[who] @ x + 0.5 * rng.normal()))
        found[alike] = float(declared(policy).many.model.prior.noise[arrays.RHO_])
    assert found[True] > 0.7
    assert abs(found[False]) < 0.3


def test_a_step_of_one_variance_is_a_square_root_by_hand() -> None:
    """Σ = 2, D = 2 and R = 8: the squares are four times what they should be, so Γ = 2·√(8/2) = 4."""
    found = refit._between(np.array([[2.0]]), np.array([[2.0]]), np.array([[8.0]]))
    assert found == pytest.approx(np.array([[4.0]]))


def test_a_step_solves_its_equation() -> None:
    rng = np.random.default_rng(3)
    covariance, known, wanted = (a @ a.T + 0.1 * np.eye(4) for a in rng.normal(size=(3, 4, 4)))
    found, back = refit._between(covariance, known, wanted), np.linalg.inv(covariance)
    assert found @ back @ known @ back @ found == pytest.approx(wanted)
    assert (np.linalg.eigvalsh(found) > 0).all()


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_rare_clicks_of_users_who_do_not_differ_are_learned(seed: int) -> None:
    """12 items with clicks of 0.2 to 4 %, 300 users: each has 20 payoffs, most of them 0. It lost as much as a random
    choice when each click was taken for the taste of its user.
    """
    rng, n_rounds = np.random.default_rng(seed), 6000
    table, ids = rng.normal(size=(12, 8)), [f"i{k}" for k in range(12)]
    clicks = 1 / (1 + np.exp(4.5 - 0.35 * table @ rng.normal(size=8)))
    policy = Hierarchical(n_features=8, one_hot=True, seed=seed)
    shown, lost = Candidates(ids, table), 0.0
    for _ in range(n_rounds):
        user = f"u{rng.integers(300)}"
        k = policy.choose(user, shown)
        policy.learn(user, shown[k], float(rng.random() < clicks[k]))
        lost += clicks.max() - clicks[k]
    assert lost < 0.85 * n_rounds * (clicks.max() - clicks.mean())


def test_a_fit_that_fails_leaves_the_population_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    rng = np.random.default_rng(6)
    users, table, payoffs = [f"u{k % 9}" for k in range(90)], rng.normal(size=(90, 2)), rng.normal(size=90)
    policy = Hierarchical(n_features=2)
    policy.learn_many(users, table, payoffs)
    before = policy.variances
    monkeypatch.setattr(refit, "_between", fails)
    for k in range(60):
        policy.learn(users[k], table[k], float(payoffs[k]))
    assert policy.variances == before
    monkeypatch.undo()
    for k in range(60):
        policy.learn(users[k], table[k], float(payoffs[k]))
    assert policy.variances != before


@pytest.mark.parametrize("wrong", ["raises", "too large"])
def test_a_fit_that_fails_leaves_the_effects_of_items_as_they_were(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(population: Population, _: int) -> None:
        if wrong == "raises":
            raise np.linalg.LinAlgError("Singular matrix")
        population.model.prior.noise[arrays.TAU_] = 1e61

    rng, policy = np.random.default_rng(8), make("both")
    for t in range(100):
        shown = Candidates([f"item {t % 5}"], rng.normal(size=(1, 3)))
        policy.learn(f"user {t % 9}", shown[0], float(rng.normal()))
    monkeypatch.setattr(refit, "new_effects", fails)
    many, pairs = declared(policy).many, declared(policy).pairs.rows
    many.model.place[[arrays.DUE, arrays.PHASE]] = 1, 0
    before = [array.copy() for array in (*many.model.prior, many.model.effects)]
    refit.refit_if_due(many, pairs, 5)
    for array, old in zip((*many.model.prior, many.model.effects), before, strict=True):
        assert (array == old).all()
