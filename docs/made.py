"""Write the numbers of the pages: `python docs/made.py` fills in every mark from the files in results/.

A mark is `<!-- made: NAME -->…<!-- end -->`, in a line or around a table; NAME is a function below, perhaps with
arguments: `<!-- made: bench startup "import coterie" -->`. A test compares each mark with what results/ says now.
"""

import json
import re
import shlex
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", RESULTS / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = re.compile(r"<!-- made: (.+?) -->(.*?)<!-- end -->", re.DOTALL)


def read(name: str) -> Any:
    """Return a JSON file of results/."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def contest(part: str) -> str:
    """Return a text of the contest: first_page, where_not, ahead or words."""
    return str(read("contest.json")[part])


def contest_lines(*titles: str) -> str:
    """Return some games of the contest: Hierarchical's regret over RAN's, beside rivals that show why."""
    names = {"hierarchical": "`Hierarchical`", "linucb-multiple": "alone", "linucb-single": "pooled"}
    names |= {"cab": "CAB", "vw": "VW"}
    lines = ["", f"| data | {' | '.join(names.values())} |", "|---|---|---|---|---|---|"]
    for title in titles:
        [found, *_] = [one for one in read("contest.json")["lines"] if one["title"].startswith(title)]
        cells = " | ".join(f"{found['scores'][name]['mean']:.3f}" for name in names)
        lines.append(f"| {found['title']} | {cells} |")
    return "\n".join([*lines, ""])


def contest_time() -> str:
    """Return how long the contest takes, and which games take longest."""
    lines = (RESULTS / "contest-time.jsonl").read_text(encoding="utf-8").splitlines()
    of_game: dict[str, float] = {}
    for row in map(json.loads, lines):
        of_game[row["game"]] = of_game.get(row["game"], 0.0) + row["seconds"] / 60
    most = sorted(of_game, key=lambda game: -of_game[game])[:3]
    longest = ", ".join(f"{game} {of_game[game]:.0f}" for game in most)
    total = sum(of_game.values())
    return f"{total:.0f} minutes of processor time, so {total / 2:.0f} on two cores (longest: {longest})"


def draws() -> str:
    """Return what drawing costs Hierarchical, beside the same model that always takes the highest score."""
    lines = ["", "| game | with draws | highest score | the draws cost |", "|---|---|---|---|"]
    for row in map(json.loads, (RESULTS / "draws.jsonl").read_text(encoding="utf-8").splitlines()):
        name = row["folder"].removeprefix("world-").removesuffix("-hierarchical")
        name += ", features only" if row["policy"].endswith("items=features") else ""
        sign, digits = (-1, 4) if row["measure"] == "ctr" else (1, 3)
        cost = [sign * (a - b) for a, b in zip(row["drawn"], row["highest"], strict=True)]
        cells = (
            f"{statistics.mean(runs):.{digits}f} ± {statistics.stdev(runs):.{digits}f}"
            for runs in (row["drawn"], row["highest"], cost)
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def comparison() -> str:
    """Return the table of the default comparison."""
    lines = ["", "| policy | lost (regret) | of what RAN lost |", "|---|---|---|"]
    for policy in read("compare/result.json")["policies"]:
        lost, share = policy["regret"], policy["regret_to_random"]
        value = f"{lost['mean']:,.0f} ± {lost['spread']:,.0f}"
        lines.append(f"| {policy['title']} | {value} | {share['mean']:.0%} |")
    return "\n".join([*lines, ""])


def compared(what: str) -> str:
    """Return how the default comparison was made: `rounds` or `runs`."""
    found = read("compare/result.json")
    return f"{found['n_rounds']:,}" if what == "rounds" else f"{len(found['seeds'])}"


def half_lives() -> str:
    """Return the regret of policies that forget, beside those that do not, in two worlds."""
    worlds = ("drifting", "music-and-news")
    head = "| policy | " + " | ".join(f"`{world}` | with `half_life=10`" for world in worlds) + " |"
    lines = ["", head, "|---|---|---|---|---|"]
    found = {
        world: {
            policy["policy"]: policy["regret"]
            for policy in read(f"half-life-{world}/result.json")["policies"]
        }
        for world in worlds
    }
    for name, first, title in (
        ("hierarchical", "hierarchical", "Hierarchical()"),
        ("hierarchical", "hierarchical:half_life=None", "Hierarchical(half_life=None)"),
        ("cab", "cab", "CAB()"),
        ("linucb-multiple", "linucb-multiple", "LinUCB(shared=False)"),
    ):
        cells = []
        for world in worlds:
            for spec in (first, f"{name}:half_life=10"):
                value = found[world][spec]
                cells.append(f"{value['mean']:,.0f} ± {value['spread']:,.0f}")
        lines.append(f"| `{title}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def bench(suite: str, row: str, what: str = "value", shape: str = ".2g", scale: str = "1") -> str:
    """Return a number of a benchmark: the value or the ratio of the first row whose name starts so."""
    [found, *_] = _rows(suite, row)
    return f"{found[what] * float(scale):{shape}}"


def benches(suite: str, *starts: str) -> str:
    """Return a table of the rows of a benchmark whose names start so; of all rows without `starts`."""
    lines = ["", "| what | measured | against | ratio | limit |", "|---|---|---|---|---|"]
    for row in (row for start in starts or ("",) for row in _rows(suite, start)):
        limit = (row["limit"] or "").replace("<=", "≤").replace(">=", "≥")
        limit += ": **not met**" if row["holds"] is False else ""
        value, ratio = (f"{row[what]:{',.0f' if row[what] >= 100 else '.2g'}}" for what in ("value", "ratio"))
        if not row["against"] or row["value"] == row["ratio"]:  # a number by itself, or against one unit
            row["against"] = ratio = ""
        cells = (row["name"], f"{value} {row['unit']}".strip(), row["against"], ratio, limit)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _rows(suite: str, start: str) -> list[Any]:
    found = [one for one in read(f"benchmarks/{suite}.json") if one["name"].startswith(start)]
    if not found:
        raise SystemExit(f"results/benchmarks/{suite}.json has no row that starts with {start!r}")
    return found


def rounds_by_processor() -> str:
    """Return how long a round of dense CAB takes, divided by the time of its arithmetic."""
    lines = [
        "",
        "| instructions | registers | block | time of a round ÷ its arithmetic |",
        "|---|---|---|---|",
    ]
    for name, block, suffix in (
        ("AVX-512", "32 of 8 | 16 users × 13 candidates", ""),
        ("AVX2 with FMA", "16 of 4 | 8 × 6", "-avx2"),
    ):
        amd, intel = (
            _rows(f"dense{maker}{suffix}", "a round against its arithmetic")[0]["ratio"]
            for maker in ("", "-xeon")
        )
        lines.append(f"| {name} | {block} | AMD EPYC: {amd:.2f}; Intel Xeon: {intel:.2f} |")
    lines += [
        "| AVX, SSE2 | 16 of 4 or 2 | 8 × 6, 8 × 2 | not measured |",
        "| NEON | 32 of 2 | 8 × 6 | not measured |",
    ]
    return "\n".join([*lines, ""])


def exponents() -> str:
    """Return with which power of each size the cost of a round or record grows."""
    kinds = {"one-hot": ("n_users", "n_items", "n_candidates", "records")}
    kinds["dense"] = ("n_users", "n_features", "n_candidates", "rounds")
    lines = [
        "",
        "| exponent: cost ~ size to this power | users | features or items | candidates | rounds or records played |",
        "|---|---|---|---|---|",
    ]
    for kind, sizes in kinds.items():
        powers = (_rows("growth", f"{kind}: cost ~ {size} ** exponent")[0]["value"] for size in sizes)
        lines.append(f"| {kind} | {' | '.join(f'{power:.2f}' for power in powers)} |")
    return "\n".join([*lines, ""])


def looks() -> str:
    """Return what simulated trials say that were looked at often."""
    found = read("looks.json")
    without, lift = found["without"], found["with"]
    lines = ["", "| simulated trials | always-valid interval | interval for one look |", "|---|---|---|"]
    for smallest, share in without["always"].items():
        what = f"no difference, `smallest-lift` {smallest}, {without['looks']:,} looks: a winner named in"
        lines.append(f"| {what} | {share:.1%} of {without['trials']:,} | {without['once']:.1%} |")
    what = "a lift of 5 % on a payoff of 0.2: named after (median), against one look with power 80 %"
    lines.append(f"| {what} | {lift['named']:,.0f} decisions | {lift['fixed']:,.0f} decisions |")
    return "\n".join([*lines, ""])


def services() -> str:
    """Return what several services on one store cost, and what they could answer."""
    columns = (
        "store", "services", "deciding a rank", "following it", "deciding a reward", "following it",
        "ranks on as many cores, times one service", "read elsewhere, p50", "p99",
    )  # fmt: skip
    lines = ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for store, rows in read("services.json").items():
        for row in rows:
            cells = [
                f"{row['deciding_a_rank_us']:.0f} µs", _share(row["following_a_rank"]),
                f"{row['deciding_a_reward_us']:.0f} µs", _share(row["following_a_reward"]),
                f"{row['times_one']:.2f}",
                *(_share(row[f"read_elsewhere_{part}_ms"], ".0f", " ms") for part in ("p50", "p99")),
            ]  # fmt: skip
            lines.append(f"| {store} | {row['workers']} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def loads() -> str:
    """Return what a rank costs a service, beside an endpoint that has none behind it."""
    columns = (
        "`/v1/rank` with", "rewards per rank", "processor time", "bare endpoint", "ratio",
        "a core has time for", "p99", "lost",
    )  # fmt: skip
    lines = ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for rewards, found in read("loadtest.json").items():
        for kind, row in found.items():
            cells = [
                kind, rewards, f"{row['cpu_us_a_rank']:.0f} µs", f"{row['bare_cpu_us_a_rank']:.0f} µs",
                f"{row['cost_ratio_to_bare']:.1f}", f"{load(kind, rewards)} per second",
                f"{row['p99_ms']:.0f} ms", f"{row['lost']}",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def load(kind: str, rewards: str) -> str:
    """Return how many ranks per second a core has time for."""
    return f"{round(1e6 / read('loadtest.json')[rewards][kind]['cpu_us_a_rank'], -2):,.0f}"


def _share(value: float | None, shape: str = ".2f", unit: str = "") -> str:
    return "" if value is None else f"{value:{shape}}{unit}"


def prompts() -> str:
    """Return what choosing a model for each prompt earned, beside always the best model, by the price of a dollar."""
    columns = (
        "price of a dollar",
        "quality",
        "dollars per prompt",
        "payoff",
        "always the best model",
        "best for each prompt",
    )
    lines = ["", f"| {' | '.join(columns)} |", "|---|---|---|---|---|---|"]
    for row in read("prompts.json")["ours"]:
        value = f"{row['quality']:.3f} ± {row['spread']:.4f} | {row['cost']:.5f}"
        earned = " | ".join(f"{row[what]:.3f}" for what in ("payoff", "best_model", "ideal"))
        lines.append(f"| {row['price']:g} | {value} | {earned} |")
    return "\n".join([*lines, ""])


def at_bound() -> str:
    """Return how often guardrails are broken in simulated loops whose true average is the bound."""
    rows = [f"| {kind} | {share:.1%} |" for kind, share in read("looks.json")["at_bound"].items()]
    return "\n".join(["", "| values | loops that ever broke it |", "|---|---|", *rows, ""])


def beyond_bound() -> str:
    """Return how many users it takes until a guardrail that is really exceeded is broken."""
    rows = []
    for one in read("looks.json")["beyond_bound"]:
        counts = [f"{round(one[name], -1):,.0f}" for name in ("half", "most", "fixed")]
        rows.append(f"| {one['rate']:.1%} | {' | '.join(counts)} |")
    head = "| true average | half of the loops by | nine of ten by | one look, planned before |"
    return "\n".join(["", head, "|---|---|---|---|", *rows, ""])


def per_second(suite: str, row: str, cores: str) -> str:
    """Return how many of a benchmark's rows, in µs, so many cores do in a second, in two digits."""
    n = float(f"{int(cores) * 1e6 / _rows(suite, row)[0]['value']:.2g}")
    return f"{n / 1e6:g} million" if n >= 1e6 else f"{n:,.0f}"


def friends() -> str:
    """Return what friends do to Hierarchical's regret over RAN's, in a sentence."""
    found = {
        one["title"]: one["scores"]["hierarchical"]["mean"]
        for one in read("contest.json")["lines"]
        if "hierarchical" in one["scores"]
    }
    texts = []
    for title in (name for name in found if name.endswith(" and friends")):
        name = title.removesuffix(", features and friends")
        texts.append(
            f"{name}: {found[title]:.3f} with friends, {found[f'{name}, features only']:.3f} without"
        )
    return "; ".join(texts) + "."


def spending() -> str:
    """Return what a budget per request was spent on, and what that was worth."""
    found = read("spending.json")
    always = ", ".join(
        f"{name} {one['quality']:.3f} and {one['cost']:.1e}" for name, one in found["always"].items()
    )
    lines = [
        f"{found['prompts']:,} prompts, {found['runs']} runs. Quality and dollars of one model alone: {always}.",
        "",
        "| budget per request | costs known | spent in the second half, of the budget | quality in the second half |",
        "|---|---|---|---|",
    ]
    for row in found["rows"]:
        spent = row["spent"]
        of_budget = f"{statistics.mean(spent):.3f} ({min(spent):.3f} to {max(spent):.3f})"
        known = "before" if row["known"] else "after"
        lines.append(f"| {row['budget']:.1e} | {known} | {of_budget} | {row['quality']:.3f} |")
    off = max(abs(1 - spent) for row in found["cheaper"] for spent in row["spent"])
    later = f"the budget is spent again to within {off:.0%} from {found['after']} requests later on"
    return "\n".join(["", *lines, "", f"If all costs fall to a tenth, {later}.", ""])


def advised() -> str:
    """Return what `coterie advise` says of the datasets that were asked about."""
    found = {path.stem: read(f"advice/{path.name}") for path in sorted((RESULTS / "advice").glob("*.json"))}
    lines = ["", f"| | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for title, text in {
        "gain by sharing, in 100": lambda one: (
            f"{100 * one['gain']:.1f} ({100 * one['low']:.1f} to {100 * one['high']:.1f})"
        ),
        "score after one record of each user: own, everyone as one": lambda one: (
            f"{one['own'][0]:.2f}, {one['everyone'][0]:.2f}"
        ),
        "sharing": lambda one: one["verdict"],
    }.items():
        lines.append(f"| {title} | {' | '.join(text(one['sharing']) for one in found.values())} |")
    start = " | ".join(one["recommended"]["policy"] for one in found.values())
    return "\n".join([*lines, f"| start with | {start} |", ""])


def lemmas() -> str:
    """Return how often each inequality of the paper was checked in random worlds, and broken."""
    lines = ["", "| claim | checked | broken |", "|---|---|---|"]
    for one in read("lemmas.json")["claims"].values():
        words = one["words"].replace("|", "\\|")
        lines.append(f"| {words} | {one['checked']:,} | {one['broken']:,} |")
    return "\n".join([*lines, ""])


def lemma_worlds() -> str:
    """Return in how many random worlds the inequalities were checked."""
    return f"{read('lemmas.json')['worlds']:,}"


MAKERS: dict[str, Callable[..., str]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        contest,
        contest_lines,
        contest_time,
        draws,
        comparison,
        compared,
        half_lives,
        bench,
        benches,
        rounds_by_processor,
        exponents,
        looks,
        services,
        loads,
        load,
        at_bound,
        beyond_bound,
        prompts,
        per_second,
        friends,
        spending,
        advised,
        lemmas,
        lemma_worlds,
    )
}


def made(mark: str) -> str:
    """Return what belongs into a mark."""
    name, *arguments = shlex.split(mark)
    if name not in MAKERS:
        raise SystemExit(f"there is no mark {name!r}; docs/made.py has {', '.join(MAKERS)}")
    return MAKERS[name](*arguments)


def filled(text: str) -> str:
    """Return a page with every mark filled in."""
    return MARK.sub(lambda found: f"<!-- made: {found[1]} -->{made(found[1])}<!-- end -->", text)


def main() -> None:
    """Fill in all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} changed")


if __name__ == "__main__":
    main()
