"""Reports name no winner in noise, and do name one where there is one."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coterie.evaluation.verdict import (
    FIRST_RUNS,
    LEVEL,
    ClickRate,
    Kept,
    RunRegrets,
    can_show,
    chance_of_best,
    is_ahead,
    level_at,
    rate,
)
from coterie.experiments import Comparison, Plan, compare, open_world, parse_specs
from coterie.experiments.report.words import headline, lead, reason
from coterie.experiments.run.specs import Spec
from coterie.experiments.study.metrics import Summary
from coterie.experiments.study.table import as_json, table
from coterie.experiments.study.tuning import is_by_luck


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
    assert first.chance_over(second) < apart.chance_over(second)


def test_runs_of_the_same_records_are_not_several_samples() -> None:
    """What three runs on one log say is no surer than what one says, if they keep the same records."""
    run = kept(*((t, float(t % 3 == 0)) for t in range(90)))
    assert rate([run] * 3).error == pytest.approx(rate([run]).error)


def test_where_few_records_pay_more_is_asked_for() -> None:
    """Seven clicks against none: with equal rates all seven fall on one side in 1 of 128 logs."""
    clicks = rate([kept(*((t, float(t < 7)) for t in range(2000)))])
    none = rate([kept(*((t, 0.0) for t in range(2000, 4000)))])
    assert clicks.chance_over(none) >= 1 / 128
    assert none.chance_over(clicks) == 1.0


def test_nothing_kept_says_nothing_and_little_kept_too_little() -> None:
    empty = rate([kept(), kept()])
    assert math.isnan(empty.value)
    assert math.isnan(empty.error)
    ones, zeros = (rate([kept(*((t, y) for t in range(n, n + 50)))]) for n, y in ((0, 1.0), (50, 0.0)))
    assert ones.chance_over(empty) == empty.chance_over(ones) == 1.0
    assert is_ahead(ones, [zeros])
    few = rate([kept(*((t, 1.0 - (t == 3)) for t in range(20)))])
    many = rate([kept(*((t, float(t % 50 == 0)) for t in range(100, 2000)))])
    assert few.chance_over(many) < 0.001
    assert not is_ahead(few, [many])  # 20 kept records


def coin_flips(rng: np.random.Generator, n_policies: int, pays: float) -> list[ClickRate]:
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
    assert chance_of_best(better, [worse], n_hidden=4) == pytest.approx(3 * chance_of_best(better, [worse]))


def runs(*regrets: float) -> RunRegrets:
    return RunRegrets(np.array(regrets))


def test_a_lead_over_runs_by_hand() -> None:
    """Ahead by 1, 2 and −1: of the eight choices of signs three have a sum of at least 2 (4, 2, 2)."""
    first = runs(5, 5, 5)
    assert first.chance_over(runs(6, 7, 4)) == 3 / 8
    assert first.chance_over(runs(6, 7, 8)) == 1 / 8
    assert runs(6, 7, 8).chance_over(first) == first.chance_over(first) == 1.0
    assert chance_of_best(first, [runs(6, 7, 8)]) == 2 / 8  # either could have come first
    assert chance_of_best(first, [runs(6, 7, 8), runs(6, 7, 4)]) == 6 / 8  # ahead of all, or of none
    assert chance_of_best(first, [runs(6, 7, 8)], n_hidden=4) == 6 / 8


def test_nine_runs_are_the_fewest_that_can_show_anything() -> None:
    assert [n for n in range(1, 50) if can_show(n)] == list(range(9, 50))
    assert [level_at(n) / LEVEL for n in (9, 10, 19, 20, 39, 40)] == [0.5, 0.5, 0.5, 0.25, 0.25, 0.125]
    none, one = RunRegrets(np.zeros(8)), RunRegrets(np.ones(8))
    assert not is_ahead(none, [one], level=level_at(8))
    assert is_ahead(RunRegrets(np.zeros(9)), [RunRegrets(np.ones(9))], level=level_at(9))


def test_many_runs_are_judged_by_random_signs() -> None:
    """At 24 runs, as at 20: the chance of a lead of one standard deviation is that of a normal with 4.9 and 4.5."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=24)
    leads = (noise - noise.mean()) / noise.std() + 1
    assert RunRegrets(np.zeros(24)).chance_over(RunRegrets(leads)) < 1e-4
    half = RunRegrets(np.zeros(24)).chance_over(RunRegrets(leads - 0.75))  # 0.25·√24 = 1.22 standard errors
    assert half == pytest.approx(0.12, abs=0.03)


KINDS = {
    "independent": lambda rng, k, n: rng.normal(size=(k, n)),
    "runs differ more": lambda rng, k, n: 10 * rng.normal(size=n) + rng.normal(size=(k, n)),
    "counted": lambda rng, k, n: rng.poisson(3.0, size=(k, n)).astype(float),
    "some runs fail": lambda rng, k, n: 10.0 * (rng.random((k, n)) < 0.3) + 0.1 * rng.normal(size=(k, n)),
    "skewed": lambda rng, k, n: rng.exponential(size=(k, n)) ** 2,
    "on a line": lambda rng, k, n: np.linspace(-1, 1, k)[:, None] * rng.normal(size=n),
    "unequal spreads": lambda rng, k, n: rng.normal(size=(k, n)) * np.geomspace(0.1, 10, k)[:, None],
}


def names_a_winner(regrets: np.ndarray) -> bool:
    """Return whether a comparison names a winner: after 10 runs, or, if not, after 20."""
    for n in (FIRST_RUNS, 2 * FIRST_RUNS):
        first, *others = sorted(
            (RunRegrets(row[:n]) for row in regrets), key=lambda one: float(one.regrets.sum())
        )
        if is_ahead(first, others[:1], level=level_at(n)) and is_ahead(first, others, level=level_at(n)):
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("n_policies", [2, 7])
@pytest.mark.parametrize("kind", list(KINDS))
def test_at_most_1_in_100_comparisons_of_equal_policies_names_a_winner(kind: str, n_policies: int) -> None:
    """Runs are added until there is a winner. If 1 in 100 is the true share, 21 of 1,000 are 3.5 errors more."""
    rng = np.random.default_rng([list(KINDS).index(kind), n_policies])
    named = sum(names_a_winner(KINDS[kind](rng, n_policies, 2 * FIRST_RUNS)) for _ in range(1_000))
    assert named <= 21


@pytest.mark.parametrize("n_policies", [2, 7])
def test_of_300_comparisons_of_equal_policies_at_most_nine_name_a_winner(n_policies: int) -> None:
    """A quick version of the slow test: nine is 3.5 errors more than three. Seeds are fixed."""
    rng = np.random.default_rng(n_policies)
    drawn = [KINDS["some runs fail"](rng, n_policies, FIRST_RUNS) for _ in range(300)]
    sorted_ = [
        sorted((RunRegrets(row) for row in one), key=lambda run: float(run.regrets.sum())) for one in drawn
    ]
    assert sum(is_ahead(first, others, level=level_at(FIRST_RUNS)) for first, *others in sorted_) <= 9


@pytest.mark.parametrize(("n_runs", "more"), [(1, 10), (3, 10), (10, 20)])
def test_real_comparisons_of_blind_policies_in_a_world_name_no_winner(
    n_runs: int, more: int, tmp_path: Path
) -> None:
    specs = [Spec(f"random:seed={k}", "random", {"seed": k}) for k in range(3)]
    plan = Plan("clicks", open_world("clicks"), specs, 60, n_runs, 0, tmp_path)
    found = compare(plan, workers=1)
    assert headline(found).startswith("No clear winner: RAN (seed=")
    assert f"of {n_runs} run" in headline(found)
    assert reason(found).endswith(f"try --runs {more}.")
    assert ("cannot show more" in reason(found)) == (n_runs < 9)
    assert lead(found).endswith(reason(found))
    assert as_json(found)["clear_winner"] is False


def test_a_real_comparison_in_a_world_names_the_winner_there_is(tmp_path: Path) -> None:
    plan = Plan("clicks", open_world("clicks"), parse_specs("linucb-single,random"), 400, 3, 0, tmp_path)
    found = compare(plan, workers=1)
    assert headline(found).startswith("No clear winner: LinUCB-SINGLE lost less than RAN in 3 of 3 runs (by ")
    assert reason(found) == "3 runs cannot show more; try --runs 10."
    found = compare(replace(plan, n_runs=10), workers=1)
    assert headline(found).startswith("LinUCB-SINGLE won: it lost ")
    assert reason(found).startswith("It lost less than RAN in 10 of 10 runs (by ")


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
    assert found.is_clear
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
    assert not found.is_clear
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
