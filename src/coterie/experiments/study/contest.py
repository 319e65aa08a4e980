"""The contest: one table of every policy on every dataset, from the numbers that `coterie reproduce` wrote.

A line is a dataset with its number of rounds; for a policy in two folders, the later one counts. If items have
features and ids, and a policy was also played on features only, the dataset has two lines: in the first all policies
see features only, in the second each policy sees what works best for it. Policies that are given friendships have a
line of their own, and are in no other. A policy without a result in a line has a note that says why, and a cell of
fewer runs than the line's says how many.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from coterie.arrays import JsonObject
from coterie.data import WORLDS
from coterie.errors import FileError, ParameterError
from coterie.experiments.run.runs import FRIENDS
from coterie.experiments.run.specs import NICKNAMES
from coterie.experiments.run.worlds import whole_of
from coterie.experiments.study.contest_games import why_not_played
from coterie.experiments.study.metrics import shown
from coterie.experiments.study.reproduce import TITLES
from coterie.models.files import written_whole
from coterie.policies import POLICIES

FIRST = ("hierarchical", "vw")  # of the columns
RANDOM = "random"
NOT_PLAYED = "Not played in the runs that this line is made of."
WITH_FRIENDS = " and friends"  # a view's suffix
NOT_GIVEN = "it takes no friendships"
BEGIN, END = "<!-- contest -->", "<!-- end of contest -->"


class ContestScore(NamedTuple):
    """A policy's result: regret divided by RAN's (lower is better), or click-through rate (higher is better)."""

    title: str
    mean: float
    spread: float  # NaN of one run
    view: str  # which part of items it saw
    note: str = ""  # the best setting, if several were played; or additional knowledge
    runs: tuple[float, ...] = ()  # the same number in each run, if known
    n_runs: int = 0
    error: float | None = None  # of a click-through rate: its sampling error, if known

    def loss(self, is_log: bool) -> float:
        """Return a number that is lower for better results."""
        return -self.mean if is_log else self.mean


class ContestLine(NamedTuple):
    """One dataset."""

    title: str
    is_log: bool
    n_rounds: int
    n_runs: int
    scores: dict[str, ContestScore]  # by the policy's name
    not_played: dict[str, str] = {}  # by the policy's name: why it has no score  # noqa: RUF012

    def best(self, names: Iterable[str] | None = None) -> str | None:
        """Return the best policy, of all or of those named; None if none of them played."""
        able = [name for name in (self.scores if names is None else names) if name in self.scores]
        return min(able, key=lambda name: self.scores[name].loss(self.is_log), default=None)

    def lost(self, name: str) -> float | None:
        """Return a policy's loss relative to RAN's, which is 1; for a log, RAN's rate divided by the policy's."""
        if not self.is_log:
            return self.scores[name].mean
        blind = self.scores.get(RANDOM)
        return None if blind is None or not self.scores[name].mean else blind.mean / self.scores[name].mean


def read_contest(folders: Sequence[Path]) -> list[ContestLine]:
    """Return the lines of the table, from the `numbers.json` of each folder."""
    if not folders:
        raise ParameterError("no folder is named; give folders with a numbers.json, such as results/lastfm")
    groups: dict[str, JsonObject] = {}
    for folder in folders:
        found = _read(folder)
        comparison = found["comparison"]
        key = json.dumps([comparison["world_parameters"], comparison["n_rounds"]], sort_keys=True)
        group = groups.setdefault(
            key,
            {"numbers": found, "scores": {}, "n_runs": 0, "not_played": why_not_played(found["dataset"])},
        )
        group["n_runs"] = max(group["n_runs"], len(comparison["seeds"]))
        group["scores"] |= _scores(comparison)
        group["not_played"] |= found.get("not_played", {})
    order = [*TITLES, *WORLDS]

    def place(group: JsonObject) -> tuple[int, int]:
        name = group["numbers"]["dataset"]
        known = order.index(name) if name in order else len(order)
        return known, -group["numbers"]["statistics"]["rounds"]  # else as named

    first: dict[str, JsonObject] = {}
    lines = []
    for group in sorted(groups.values(), key=place):
        numbers = group["numbers"]
        lines += _lines(group, _apart(numbers, first.setdefault(numbers["dataset"], numbers)))
    return lines


def _apart(numbers: JsonObject, other: JsonObject) -> str:
    """Return how a dataset's rounds differ from those of its first line, as a suffix of its title."""
    mine, theirs = (whole_of(one["comparison"]["world_parameters"]) for one in (numbers, other))
    parts = [f"{key}={value}" for key, value in mine.items() if theirs.get(key) != value]
    n_rounds = numbers["statistics"]["rounds"]
    if n_rounds != other["statistics"]["rounds"]:
        is_log = numbers["comparison"]["measure"] == "ctr"
        parts.append(f"first {n_rounds:,} {'records' if is_log else 'rounds'}")
    return "".join(f", {part}" for part in parts)


def _read(folder: Path) -> JsonObject:
    path = folder / "numbers.json"
    try:
        found: JsonObject = json.loads(path.read_text(encoding="utf-8"))
        _ = found["dataset"], found["statistics"]["rounds"], found["comparison"]["policies"]
    except FileNotFoundError:
        raise FileError(
            f"there is no {path}; give folders that `coterie reproduce` wrote, each with its numbers.json"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is damaged ({error!r}); make it again with `coterie reproduce`") from error
    return found


def _scores(comparison: JsonObject) -> dict[tuple[str, str], ContestScore]:
    """Return the best of each policy's settings in a folder, by name and view of items."""
    is_log = comparison["measure"] == "ctr"
    found: dict[tuple[str, str], ContestScore] = {}
    blind = [p for p in comparison["policies"] if p["policy"].split(":")[0] == RANDOM]
    for policy in comparison["policies"]:
        value = policy["ctr"] if is_log else policy["regret_to_random"]
        if value is None or value["mean"] is None:
            continue  # without RAN there is no reference
        title, _, settings = policy["title"].partition(" (")
        chosen = re.search(r"best of \d+: ([\w-]+)", settings)
        has_friends = f"={FRIENDS}" in settings
        note = FRIENDS if has_friends else chosen[1] if chosen else ""
        view = policy.get("items") or ("ids" if is_log else "features")  # older files do not have it
        view = "ids" if view == "units" else view
        view += WITH_FRIENDS * has_friends
        key = (policy["policy"].split(":")[0], view)
        runs = tuple(_by_run(policy, None if is_log else blind[0]))
        spread = math.nan if value["spread"] is None else value["spread"]
        n_runs = len(comparison["seeds"])
        score = ContestScore(title, value["mean"], spread, view, note, runs, n_runs, value.get("error"))
        if key not in found or score.loss(is_log) < found[key].loss(is_log):
            found[key] = score
    return found


def _by_run(policy: JsonObject, blind: JsonObject | None) -> list[float]:
    """Return a policy's result in each run; empty for files without runs."""
    if blind is None:
        return [run["ctr"] for run in policy.get("runs", ()) if run["ctr"] is not None]
    both = zip(policy.get("runs", ()), blind.get("runs", ()), strict=True)
    return [own["regret"] / other["regret"] for own, other in both]


def _lines(group: JsonObject, apart: str) -> list[ContestLine]:
    """Return a dataset's line; more if who takes ids, too, also played on features only, or somebody with friends."""
    numbers, scores = group["numbers"], group["scores"]
    comparison = numbers["comparison"]
    is_log = comparison["measure"] == "ctr"
    title = numbers["statistics"]["dataset"] + apart
    facts = (is_log, comparison["n_rounds"], group["n_runs"])
    of_both = {name for name, view in scores if view == "both"}
    plain = {name: score for (name, view), score in scores.items() if view == "features"}
    befriended = {name: score for (name, view), score in scores.items() if view.endswith(WITH_FRIENDS)}
    any_view: dict[str, ContestScore] = {}
    for (name, view), score in scores.items():
        if view.endswith(WITH_FRIENDS) or (name in of_both and view != "both"):
            continue
        if name not in any_view or score.loss(is_log) < any_view[name].loss(is_log):
            any_view[name] = score
    views = {"": any_view}
    if of_both & plain.keys():
        views = {"features only": plain, "features and ids": any_view}
    lines = [
        ContestLine(f"{title}, {view}" if view else title, *facts, shown, group["not_played"])
        for view, shown in views.items()
    ]
    if befriended:
        why = dict.fromkeys([*NICKNAMES, *POLICIES], NOT_GIVEN)
        befriended |= {name: score for name, score in plain.items() if name == RANDOM}
        lines.append(ContestLine(f"{title}, features and friends", *facts, befriended, why))
    return lines


def columns(lines: Sequence[ContestLine]) -> list[str]:
    """Return all policies that played, in the order of the table."""
    known = [*FIRST, *NICKNAMES, *POLICIES]
    played = {name for line in lines for name in line.scores}
    return sorted(
        played, key=lambda name: (name == RANDOM, known.index(name) if name in known else len(known), name)
    )


def table(lines: Sequence[ContestLine]) -> str:
    """Return the table as Markdown: mean ± spread over the runs, the best of each line in bold, then the notes."""
    names, notes = columns(lines), dict[str, int]()
    titles = {name: score.title for line in lines for name, score in line.scores.items()}
    head = ["data", "measure", "rounds", "runs", *(titles[name] for name in names)]
    text = [_row(head), _row(["---"] * len(head))]
    for line in lines:
        best = line.best()
        measure = "click-through rate ↑" if line.is_log else "regret over RAN's ↓"
        cells = [_cell(line, name, notes, is_best=name == best) for name in names]
        text.append(_row([line.title, measure, f"{line.n_rounds:,}", str(line.n_runs), *cells]))
    if notes:
        text += ["", *(f"({number}) {why}  " for why, number in notes.items())]
    return "\n".join(text) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(line: ContestLine, name: str, notes: dict[str, int], *, is_best: bool) -> str:
    """Return a cell; if there is no score, the number of a note, which `notes` gets."""
    if name not in line.scores:
        why = line.not_played.get(name, NOT_PLAYED)
        return f"– ({notes.setdefault(why, len(notes) + 1)})"
    score = line.scores[name]
    digits = 4 if line.is_log else 3
    text = shown(score.mean, score.spread, f".{digits}f")
    if is_best:
        text = f"**{text}**"
    ids_alone = "ids" if score.view == "ids" and any(s.view != "ids" for s in line.scores.values()) else ""
    fewer = f"{score.n_runs} runs" if 0 < score.n_runs < line.n_runs else ""
    note = ", ".join(part for part in (score.note, ids_alone, fewer) if part)
    return f"{text} ({note})" if note else text


def put_into(page: Path, text: str) -> None:
    """Replace the text between the contest's two marks in a page."""
    try:
        whole = page.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{page} cannot be read: {error}") from error
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise FileError(
            f"{page} has no marks for the table; write {BEGIN} and, below it, {END} where it belongs"
        )
    with written_whole(page) as draft:
        draft.write_text(f"{before}{BEGIN}\n{text.strip()}\n{END}{after}", encoding="utf-8")
