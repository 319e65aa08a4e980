"""`coterie evaluate`: what other policies would have earned on a log."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from coterie.arrays import JsonObject
from coterie.cli.shared.options import JsonOption
from coterie.cli.shared.tables import result_table

if TYPE_CHECKING:
    from coterie.data.logs.interactions import InteractionLog

DEFAULT = "logged,baseline,uniform,hierarchical"
DIMENSIONS = 32  # the size of hashed features, as in the service


def evaluate(
    log: Annotated[
        str,
        typer.Argument(
            help="A service's store (its SQLite file, or postgresql://…), its .parquet or .dsjson export, a .dsjson "
            "or .json file of Vowpal Wabbit or Personalizer, or an .npz file with arrays of an obp bandit feedback."
        ),
    ],
    policies: Annotated[
        str,
        typer.Option(
            help="Policies, separated by commas: logged (what was shown), baseline, uniform, and all of `coterie "
            "compare`, which learn as the log is replayed: hierarchical:explore=0.5, linucb, …"
        ),
    ] = DEFAULT,
    clip: Annotated[
        float | None, typer.Option(help="Limit weights to this.", show_default="no limit")
    ] = None,
    level: Annotated[float, typer.Option(help="The coverage of the intervals.")] = 0.95,
    rewards: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="The least and the largest possible reward.", show_default="0 1, or -1 1 if any is negative"
        ),
    ] = None,
    user_path: Annotated[
        str, typer.Option(help="The path of the user's id in the context of a dsjson file.")
    ] = "user.id",
    seed: Annotated[int, typer.Option(help="Seed of the policies.", min=0)] = 0,
    watch: Annotated[
        float | None,
        typer.Option(
            help="Look again every so many seconds while the log grows, until Ctrl-C. Intervals and verdict then "
            "hold for all looks together.",
            min=0.1,
            show_default="one look",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and the numbers.")] = Path("out/evaluate"),
    as_json_: JsonOption = False,
) -> None:
    """Estimate what other policies would have earned on a log.

    Off-policy evaluation by IPS, self-normalised IPS, the direct method and doubly robust, each with an
    interval, and a page. The log must contain the probabilities of its choices. A store is only read, even
    while its service runs.
    """
    from coterie.evaluation import as_json, open_interactions, write_evaluation
    from coterie.evaluation import evaluate as evaluate_log
    from coterie.evaluation.words import COLUMNS, headline, lead, outlook, short_table
    from coterie.report.page import count

    def look(opened: "InteractionLog") -> None:
        named = make_policies(policies, opened, seed)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("replaying", total=len(opened.interactions))
            found = evaluate_log(
                opened,
                named,
                level=level,
                clip=clip,
                rewards=rewards,
                on_progress=lambda done, _: progress.update(task, completed=done),
                always=watch is not None,
            )
        page = write_evaluation(found, out / "evaluation.html")
        numbers = json.dumps(as_json(found), indent=2)
        (out / "evaluation.json").write_text(numbers)
        if as_json_:
            print(numbers if watch is None else json.dumps(as_json(found)), flush=True)
            return
        console = Console()
        title = f"{opened.name}: {count(len(opened.interactions), 'decision')}"
        verdict = f"{headline(found)}. {lead(found)}"
        console.print(
            verdict, *([outlook(found)] if watch else []), "", sep="\n", markup=False, highlight=False
        )
        console.print(result_table(title, *short_table(found)))
        for line in ("", COLUMNS, *found.notes):
            console.print(line, markup=False, highlight=False)
        console.print(f"Page: {os.path.relpath(page)}", markup=False, highlight=False, soft_wrap=True)

    seen = 0
    while True:
        opened = open_interactions(log, user_path=user_path)
        if len(opened.interactions) > seen or watch is None:
            look(opened)
            seen = len(opened.interactions)
        if watch is None:
            return
        try:
            time.sleep(watch)
        except KeyboardInterrupt:
            return


def make_policies(text: str, log: "InteractionLog", seed: int) -> JsonObject:
    """Return the policies that a text names, by their specs, for the actions of a log."""
    from coterie.errors import ParameterError
    from coterie.evaluation.targets import FIXED
    from coterie.experiments.run.specs import KINDS, Spec, make_policy, names, parse_spec

    def made(spec: Spec) -> Any:
        if KINDS[spec.name].takes_names and spec.items is None:
            return make_policy(spec.name, {"seed": seed} | spec.parameters)
        n_features = DIMENSIONS if log.has_features else None
        items = SimpleNamespace(
            n_features=n_features, one_hot=not log.has_features, has_ids=True, has_contexts=False
        )
        view = spec.view(items)
        return make_policy(spec.name, spec.complete(view=view, n_features=n_features, seed=seed))

    found: JsonObject = {}
    for part in filter(None, map(str.strip, text.split(","))):
        specs = {part: part} if part in FIXED else {one.text: one for one in parse_spec(part).variants()}
        for name, spec in specs.items():
            if name in found:
                raise ParameterError(f"policy {name!r} is listed twice; give each policy once")
            found[name] = spec if isinstance(spec, str) else made(spec)
    if not found:
        known = ", ".join([*FIXED, *names()])
        raise ParameterError(f"policies={text!r} names no policy; choose among {known}")
    return found
