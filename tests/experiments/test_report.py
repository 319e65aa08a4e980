"""The report: one file, nothing loaded, and words that follow from the numbers."""

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

from coterie.experiments import Comparison, Plan, compare, open_world, parse_specs, write_report
from coterie.experiments.report.comparison import command, report
from coterie.experiments.report.figures import write_curves
from coterie.experiments.report.words import headline, lead, reason, reasons_title
from coterie.experiments.run.specs import DEFAULT
from coterie.experiments.run.worlds import make_world
from coterie.experiments.study.table import table

SMALL = {"kind": "one-hot", "n_users": 20, "n_items": 8, "n_candidates": 4}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("compare")
    return compare(Plan("small <world>", make_world(SMALL), parse_specs(DEFAULT), 600, 2, 0, out), workers=1)


@pytest.fixture(scope="module")
def without_ours(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out, few = tmp_path_factory.mktemp("few"), "cab,linucb-single,linucb-multiple,random"
    return compare(Plan("small", make_world(SMALL), parse_specs(few), 100, 2, 0, out), workers=1)


def with_regrets(comparison: Comparison, **regrets: list[float]) -> Comparison:
    """Return the comparison with other results: regrets of each policy, a number a run."""
    results = []
    for result in comparison.results:
        lost = regrets[result.spec.text.replace("-", "_")]
        runs = [result.runs[0]._replace(regret=value) for value in lost]
        results.append(replace(result, runs=runs))
    results.sort(key=lambda result: result.over("regret").mean)
    return replace(comparison, results=results)


class Loads(HTMLParser):
    """Collects what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.opened: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        if tag in ("script", "link", "iframe", "img", "object", "embed", "image"):
            self.found.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.found.append(value)


def test_the_report_is_one_file_that_loads_nothing(comparison: Comparison, tmp_path: Path) -> None:
    text = write_report(comparison, tmp_path / "deep" / "report.html").read_text()
    loads = Loads()
    loads.feed(text)
    assert loads.found == []
    assert not re.search(r"https?:|url\((?!#)|@import", text)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["report.html"]


def test_the_report_has_the_words_the_curves_the_picture_and_the_table(comparison: Comparison) -> None:
    text = report(comparison)
    for title in ("Hierarchical", "CAB", "DynUCB", "CLUB", "LinUCB-SINGLE", "LinUCB-MULTIPLE", "RAN"):
        assert f"<b>{title}</b>" in text
        assert f">{title}</text>" in text  # at the end of its curve
    for cell in table(comparison)[1][0]:
        assert f"<td>{cell}</td>" in text
    assert text.count("<svg") == 4  # curves for wide and narrow screens, what was found, the truth
    assert "What Hierarchical found out" in text
    assert "The truth" in text
    assert escape(command(comparison)) in text
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_figures_take_their_colours_from_the_page(comparison: Comparison) -> None:
    text = report(comparison)
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--series-0)" in drawn
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawn)) <= {"#ffffff"}


def test_ids_within_the_figures_do_not_collide(comparison: Comparison) -> None:
    drawn = re.findall(r"<svg.*?</svg>", report(comparison), flags=re.DOTALL)
    clips = [set(re.findall(r'<clipPath id="(\w+)"', svg)) for svg in drawn]
    assert sum(map(len, clips)) == len(set().union(*clips))


def test_the_same_comparison_gives_the_same_report(comparison: Comparison) -> None:
    assert report(comparison) == report(comparison)


def test_what_users_named_is_escaped(comparison: Comparison) -> None:
    text = report(comparison)
    assert "small &lt;world&gt;" in text
    assert "<world>" not in text


def runs(mean: float) -> list[float]:
    """Return the regrets of ten runs around a mean; the same deviations for all policies, and a little of its own."""
    return [mean + k + 0.001 * mean * (k % 3) for k in range(-5, 5)]


def test_the_words_name_the_recommended_policy_whether_it_won_or_not(comparison: Comparison) -> None:
    rest = {"dynucb": 30, "club": 40, "linucb_single": 80, "random": 200, "linucb_multiple": 90}
    others = {name: runs(mean) for name, mean in rest.items()}
    won = with_regrets(comparison, hierarchical=runs(10), cab=runs(20), **others)
    assert headline(won) == "Hierarchical won: it lost 51% less than CAB, the next best"
    assert reason(won).startswith("It lost less than CAB in 10 of 10 runs (by 10 to ")
    lost = with_regrets(comparison, hierarchical=runs(20), cab=runs(10), **others)
    assert headline(lost) == "Hierarchical did not win here: CAB did"
    assert "Hierarchical won" not in report(lost)


def test_the_curves_are_a_picture_of_their_own(comparison: Comparison, tmp_path: Path) -> None:
    text = write_curves(comparison, tmp_path / "curves.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in text
    assert "#c2410c" in text  # Hierarchical's colour
    assert "#8b8f99" in text  # RAN's
    assert ">RAN</text>" in text


def test_the_words_say_that_cab_won_only_if_it_did(without_ours: Comparison) -> None:
    comparison = without_ours
    rest = {"linucb_single": runs(80), "random": runs(200)}
    won = with_regrets(comparison, cab=runs(10), linucb_multiple=runs(20), **rest)
    assert headline(won).startswith("CAB won: it lost ")
    assert "equal policies differ so much in fewer than 1 in 100 comparisons" in lead(won)
    assert reasons_title(won) == "Why CAB won"

    lost = with_regrets(comparison, cab=runs(20), linucb_multiple=runs(10), **rest)
    assert headline(lost) == "CAB did not win here: LinUCB-MULTIPLE did"
    assert "CAB won" not in report(lost)

    close = with_regrets(comparison, cab=runs(10), linucb_multiple=[*runs(10.5)[:6], *runs(9.5)[6:]], **rest)
    assert headline(close).startswith(
        "No clear winner: CAB lost less than LinUCB-MULTIPLE in 6 of 10 runs (from "
    )
    assert reason(close).endswith("so do not rely on the order; try --runs 20.")
    assert "CAB won" not in report(close)
    few = {name: values[:3] for name, values in rest.items()}
    short = with_regrets(comparison, cab=[10, 12, 14], linucb_multiple=[448, 490, 546], **few)
    assert headline(short) == "No clear winner: CAB lost less than LinUCB-SINGLE in 3 of 3 runs (by 63 to 65)"
    assert reason(short) == "3 runs cannot show more; try --runs 10."


def test_a_single_run_is_called_one(tmp_path: Path) -> None:
    plan = Plan("small", make_world(SMALL), parse_specs("linucb-multiple"), 50, 1, 0, tmp_path)
    alone = compare(plan, workers=1)
    assert headline(alone) == "LinUCB-MULTIPLE on its own"
    assert reason(alone) == "Name more policies to compare it with (--policies)."
    assert "neighbour of user" not in report(alone)  # it has none to show


def test_a_single_run_of_a_world_names_no_winner(tmp_path: Path) -> None:
    plan = Plan("small", make_world(SMALL), parse_specs("linucb-multiple,random"), 300, 1, 0, tmp_path)
    found = compare(plan, workers=1)
    assert headline(found).startswith(
        "No clear winner: LinUCB-MULTIPLE lost less than RAN in 1 of 1 run (by "
    )
    assert lead(found).endswith("1 run cannot show more; try --runs 10.")
    assert "±" not in str(table(found))


def test_a_log_is_reported_by_what_was_paid(tmp_path: Path) -> None:
    log = pl.DataFrame(
        {
            "user": [f"u{t % 5}" for t in range(400)],
            "item": [f"i{t * 7 % 6}" for t in range(400)],
            "payoff": [float(t * 7 % 6 == t % 2) for t in range(400)],
        }
    )
    log.write_csv(tmp_path / "log.csv")
    world = open_world(str(tmp_path / "log.csv"))
    comparison = compare(Plan("log.csv", world, parse_specs(DEFAULT), 300, 2, 0, tmp_path / "out"), workers=1)
    text = report(comparison)
    assert "The rounds come from a log (log.csv)" in text
    assert "click-through rate (higher is better)" in text
    assert "The truth" not in text
    assert "regret" not in text
    assert "nan" not in text.lower().replace("dominant-baseline", "")
    paid = [result.over("ctr").mean for result in comparison.results]
    assert paid == sorted(paid, reverse=True)
