"""Reports name no winner in noise, and do name one where there is one."""

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coterie.experiments import Comparison, Plan, compare, open_world, parse_specs
from coterie.experiments.report.table import as_json, table
from coterie.experiments.report.words import headline, is_clear, lead
from coterie.experiments.run.specs import Spec
from coterie.experiments.study.metrics import Summary
from coterie.experiments.study.tuning import is_by_luck
from coterie.experiments.study.verdict import (
    Kept,
    Rate,
    chance,
    chance_in_runs,
    chance_of_best,
    is_ahead,
    is_ahead_in_runs,
    rate,
)


def kept(*records: tuple[int, float]) -> Kept:
    return Kept(np.array([t for t, _ in records]), np.array([y for _, y in records]))


def test_a_rate_and_its_error_by_hand() -> None:
    """One run keeps payoffs 1 and 0: the rate is 1/2, the error √(2·(1/2·1/2)²).

    A second run keeps records 0 and 2 with payoffs 1 and 1. Record 0 now weighs 1/2 and the others 1/4, the rate is
    3/4, and the error is √((1/2·1/4)² + (1/4·3/4)² + (1/4·1/4)²) = √14/16.
    """
    one = rate([kept((0, 1.0), (1, 0.0))])
    assert one.value == 0.5
    assert one.error == pytest.approx(math.sqrt(2 / 16))
    two = rate([kept((0, 1.0), (1, 0.0)), kept((0, 1.0), (2, 1.0))])
    assert two.value == 0.75
    assert (two.records.tolist(), two.weights.tolist()) == ([0, 1, 2], [0.5, 0.25, 0.25])
    assert two.error == pytest.approx(math.sqrt(14) / 16)


def test_records_that_both_kept_cancel() -> None:
    """Both keep the same 100 records, the first one more that paid: only few records tell them apart."""
    shared = [(t, float(t % 2)) for t in range(100)]
    first, second = rate([kept(*shared, (100, 1.0))]), rate([kept(*shared)])
    apart = rate([kept(*((t + 500, y) for t, y in shared), (100, 1.0))])
    assert first.value == apart.value > second.value
    assert chance(first, second) < chance(apart, second)


def test_runs_of_the_same_records_are_not_several_samples() -> None:
    """What three runs on one log say is no surer than what one says, if they keep the same records."""
    run = kept(*((t, float(t % 3 == 0)) for t in range(90)))
    assert rate([run] * 3).error == pytest.approx(rate([run]).error)


def test_where_few_records_pay_more_is_asked_for() -> None:
    """Seven clicks against none: with equal rates all seven fall on one side in 1 of 128 logs."""
    clicks = rate([kept(*((t, float(t < 7)) for t in range(2000)))])
    none = rate([kept(*((t, 0.0) for t in range(2000, 4000)))])
    assert chance(clicks, none) >= 1 / 128
    assert chance(none, clicks) == 1.0


def test_nothing_kept_says_nothing_and_little_kept_too_little() -> None:
    empty = rate([kept(), kept()])
    assert math.isnan(empty.value)
    assert math.isnan(empty.error)
    ones, zeros = (rate([kept(*((t, y) for t in range(n, n + 50)))]) for n, y in ((0, 1.0), (50, 0.0)))
    assert chance(ones, empty) == chance(empty, ones) == 1.0
    assert is_ahead(ones, [zeros])
    few = rate([kept(*((t, 1.0 - (t == 3)) for t in range(20)))])
    many = rate([kept(*((t, float(t % 50 == 0)) for t in range(100, 2000)))])
    assert chance(few, many) < 0.001
    assert not is_ahead(few, [many])  # 20 kept records


def coin_flips(rng: np.random.Generator, n_policies: int, pays: float) -> list[Rate]:
    """Let each policy keep a tenth of 3,000 coin flips in each of three runs; some records they keep together."""
    payoffs = (rng.random(3000) < pays).astype(float)
    common = [rng.random(3000) < 0.05 for _ in range(3)]
    rates = []
    for _ in range(n_policies):
        own = [np.flatnonzero(both | (rng.random(3000) < 0.05)) for both in common]
        rates.append(rate([Kept(records, payoffs[records]) for records in own]))
    return sorted(rates, key=lambda one: -one.value)


@pytest.mark.parametrize("n_policies", [2, 4, 8])
@pytest.mark.parametrize("pays", [0.5, 0.05, 0.005])
def test_of_200_logs_of_coin_flips_at_most_four_name_a_winner(n_policies: int, pays: float) -> None:
    rng = np.random.default_rng([n_policies, int(1000 * pays)])
    logs = [coin_flips(rng, n_policies, pays) for _ in range(200)]
    assert sum(is_ahead(first, others) for first, *others in logs) <= 4


def test_the_chance_is_what_it_says() -> None:
    """Of 2,000 logs of coin flips with two policies, about one in ten has a chance under 0.1."""
    rng = np.random.default_rng(1)
    found = [
        chance_of_best(first, others) for first, *others in (coin_flips(rng, 2, 0.5) for _ in range(2000))
    ]
    assert np.mean(np.array(found) <= 0.1) == pytest.approx(0.1, abs=0.03)


def test_a_policy_that_pays_twice_as_much_is_named() -> None:
    rng = np.random.default_rng(2)
    better, worse = (
        rate([Kept(np.arange(first, first + 1000), (rng.random(1000) < pays).astype(float))])
        for first, pays in ((0, 0.2), (1000, 0.1))
    )
    assert is_ahead(better, [worse])
    assert not is_ahead(worse, [better])
    assert chance_of_best(better, [worse], tried=6) == pytest.approx(3 * chance_of_best(better, [worse]))


def test_a_lead_over_runs_by_hand() -> None:
    """Ahead by 1, 2 and 3: t = 2/(1/√3) = 2√3 with two degrees of freedom, where P(T > t) = 1/2 − t/(2·√(2 + t²)).

    That is 1/2 − √3/√14 = 0.0371, and twice as much for two policies, of which either could have come first.
    """
    first, second = [5.0, 5.0, 5.0], [6.0, 7.0, 8.0]
    expected = 0.5 - math.sqrt(3 / 14)
    assert chance_in_runs(first, [second]) == pytest.approx(2 * expected)
    assert chance_in_runs(first, [second], tried=5) == pytest.approx(5 * expected)
    assert chance_in_runs(second, [first]) == 1.0
    assert chance_in_runs([5.0], [[9.0]]) == 1.0  # a single run tells nothing
    assert chance_in_runs(first, [[6.0, 6.0, 6.0]]) == 2 / 8  # no spread: three signs that agree
    assert is_ahead_in_runs(first, [[15.0, 15.1, 14.9]])
    assert not is_ahead_in_runs(first, [[15.0, 15.1, 14.9], second])  # ahead of all, or of none


@pytest.mark.parametrize("n_policies", [2, 4, 8])
@pytest.mark.parametrize("n_runs", [2, 3, 5, 10])
def test_of_1000_worlds_where_all_do_the_same_at_most_20_name_a_winner(n_policies: int, n_runs: int) -> None:
    """Runs differ by more than policies do, and payoffs are counted, so that regrets may be equal."""
    rng = np.random.default_rng([n_policies, n_runs])
    named = 0
    for _ in range(1000):
        regrets = 10 * rng.normal(size=n_runs) + np.round(2 * rng.normal(size=(n_policies, n_runs)))
        first, *others = sorted(regrets.tolist(), key=sum)
        named += is_ahead_in_runs(first, others)
    assert named <= 20


@pytest.mark.parametrize("n_runs", [2, 3, 5])
def test_real_comparisons_of_blind_policies_in_a_world_name_no_winner(n_runs: int, tmp_path: Path) -> None:
    specs = [Spec(f"random:seed={k}", "random", {"seed": k}) for k in range(3)]
    for seed in range(4):
        plan = Plan("clicks", open_world("clicks"), specs, 60, n_runs, 100 * seed, tmp_path / str(seed))
        found = compare(plan, workers=1)
        assert headline(found).startswith(f"No clear winner in {n_runs} runs: RAN")
        assert "do not rely on the order" in lead(found)
        assert as_json(found)["clear_winner"] is False


def test_a_real_comparison_in_a_world_names_the_winner_there_is(tmp_path: Path) -> None:
    plan = Plan("clicks", open_world("clicks"), parse_specs("linucb-single,random"), 1500, 4, 0, tmp_path)
    found = compare(plan, workers=1)
    assert headline(found).startswith("LinUCB-SINGLE won")


def compared(folder: Path, payoffs: list[float], n_runs: int, policies: str) -> Comparison:
    rng = np.random.default_rng(len(payoffs))
    n = len(payoffs)
    users, items = [f"u{k}" for k in rng.integers(30, size=n)], [f"i{k}" for k in np.arange(n) % 8]
    pl.DataFrame({"user": users, "item": items, "payoff": payoffs}).write_parquet(folder / "log.parquet")
    world = open_world(str(folder / "log.parquet"))
    plan = Plan("log", world, parse_specs(policies), n, n_runs, 0, folder / "out")
    return compare(plan, workers=1)


@pytest.mark.parametrize("seed", range(6))
def test_real_comparisons_on_coin_flips_name_no_winner(seed: int, tmp_path: Path) -> None:
    payoffs = np.random.default_rng(seed).integers(2, size=1200).astype(float).tolist()
    found = compared(tmp_path, payoffs, 1 + seed % 3, "cab,linucb-single,random")
    assert headline(found).startswith("No clear winner")
    assert "where all pay the same, so do not rely on the order" in lead(found)
    assert "won" not in lead(found)


@pytest.mark.slow
def test_of_200_reports_on_coin_flips_at_most_four_name_a_winner(tmp_path: Path) -> None:
    named = 0
    for seed in range(200):
        (tmp_path / str(seed)).mkdir()
        payoffs = np.random.default_rng(seed).integers(2, size=600 + seed).astype(float).tolist()
        found = compared(tmp_path / str(seed), payoffs, 1 + seed % 2, "cab,linucb-single,random")
        named += not headline(found).startswith("No clear winner")
    assert named <= 4


def test_a_real_comparison_names_the_winner_there_is(tmp_path: Path) -> None:
    """Item 3 always pays and the others never do: LinUCB finds out, a blind choice does not."""
    payoffs = [float(t % 8 == 3) for t in range(2000)]
    found = compared(tmp_path, payoffs, 1, "linucb-single,random")
    assert is_clear(found)
    assert headline(found) == "LinUCB-SINGLE won"
    assert "fewer than 1 in 100 logs" in lead(found)


def test_one_run_has_an_error_and_no_spread(tmp_path: Path) -> None:
    found = compared(tmp_path, [float(t % 3 == 0) for t in range(900)], 1, "random,cab")
    assert "± 0.0000" not in str(table(found))
    for result, line in zip(found.results, as_json(found)["policies"], strict=True):
        assert result.rate is not None
        assert line["ctr"]["spread"] is None
        assert line["ctr"]["error"] == pytest.approx(result.rate.error)
        assert f"± {result.rate.error:.4f}" in table(found)[1][found.results.index(result)][1]


def test_too_few_kept_records_are_told(tmp_path: Path) -> None:
    found = compared(tmp_path, [float(t % 2) for t in range(40)], 2, "random,cab")
    assert not is_clear(found)
    assert "too few to compare" in lead(found)


def settings_tried(rng: np.random.Generator, rates: list[float], kept: int) -> list[Summary]:
    paid = [float((rng.random(kept) < rate).mean()) for rate in rates]
    nothing = dict.fromkeys(Summary._fields, 0)
    return [Summary(**nothing)._replace(kept=kept, ctr=value) for value in paid]


def test_tuning_on_too_few_records_is_told_to_be_luck() -> None:
    rng = np.random.default_rng(3)
    equal = [settings_tried(rng, [0.05] * 21, 200) for _ in range(50)]
    assert sum(map(is_by_luck, equal)) > 35
    different = [settings_tried(rng, [0.05] * 20 + [0.10], 20_000) for _ in range(50)]
    assert not any(map(is_by_luck, different))
    assert is_by_luck(settings_tried(rng, [0.1, 0.2], 1)[:1] * 2)
    assert not is_by_luck([])
