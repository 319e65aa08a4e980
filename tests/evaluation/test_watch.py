"""A growing log may be looked at as often as one likes: intervals and verdict hold for all looks together."""

import doctest
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie import evaluate
from coterie.cli.app import app
from coterie.evaluation import Evidence, Span, estimate, verdict
from coterie.evaluation.verdict import is_ahead
from coterie.evaluation.words import outlook
from coterie.models import always_valid
from coterie.models.always_valid import always_for, chance_always

run = CliRunner()


def test_the_examples_of_the_module_hold() -> None:
    assert doctest.testmod(always_valid).failed == 0
    assert doctest.testmod(verdict).failed == 0


@pytest.mark.parametrize("level", [0.05, 0.01, 1e-6])
@pytest.mark.parametrize("draws", [3.0, 400.0, 1e7])
def test_the_chance_of_the_edge_of_an_interval_is_its_level(level: float, draws: float) -> None:
    assert chance_always(always_for(draws, level), draws) == pytest.approx(level)
    assert chance_always(0.0, draws) == 1.0
    assert chance_always(math.inf, draws) == 0.0


def feedback(rng: Any, n: int, better: float) -> dict[str, Any]:
    """Return a log of four actions that pay 0.3, the last one `better` more; each is shown one time in four."""
    action = rng.integers(4, size=n)
    reward = rng.random(n) < np.where(action == 3, 0.3 + better, 0.3)
    return {"action": action, "reward": reward, "pscore": np.full(n, 0.25), "n_actions": 4}


def evidence_of(rng: Any, n: int, shown: float, always: bool) -> tuple[Evidence, Evidence]:
    """Return the evidence of what was shown, and of an action that was shown with the probability `shown`."""
    rewards = (rng.random(n) < 0.3).astype(float)
    weights = (rng.random(n) < shown) / shown
    zeros = np.zeros(n)
    both = [
        Evidence(one, rewards, zeros + 0.3, zeros + 0.3, largest, Span(0.0, 1.0), always=always)
        for one, largest in ((np.ones(n), 1.0), (weights, 1 / shown))
    ]
    return both[0], both[1]


def looks(one: Evidence) -> list[Evidence]:
    """Return what was known at many looks."""
    ends = np.unique(np.geomspace(40, one.n, 60).astype(int))
    parts = [one.part(0, int(end)) for end in ends]
    return [Evidence(**{**vars(part), "always": one.always}) for part in parts]


@pytest.mark.parametrize("shown", [0.5, 0.1])
def test_equal_policies_are_rarely_told_apart_in_any_look(shown: float) -> None:
    """With tests for one look the same logs name a winner often: these looks are many enough to matter."""
    named, missed = {True: 0, False: 0}, {True: 0, False: 0}
    logs = 150
    for seed in range(logs):
        for always in (True, False):
            first, second = evidence_of(np.random.default_rng(seed), 3000, shown, always)
            pairs = [*zip(looks(first), looks(second), strict=True)]
            named[always] += any(
                is_ahead(a, [b], level=0.05) or is_ahead(b, [a], level=0.05) for a, b in pairs
            )
            if always or seed < 30:  # one-look intervals take long
                found = [estimate(b)["dr"] for _, b in pairs[:: 1 if always else 6]]
                missed[always] += any(not one.low <= 0.3 <= one.high for one in found)
    assert named[True] <= 0.05 * logs
    assert missed[True] <= 0.05 * logs
    assert named[False] > 0.1 * logs


def test_a_true_lead_is_named_and_the_outlook_says_how_long_it_takes() -> None:
    rng = np.random.default_rng(3)
    log = feedback(rng, 4000, 0.3)
    best = np.eye(4)[np.full(4000, 3)]

    class Best:
        def probabilities(self, t: int, one: Any, encoded: Any) -> Any:
            return best[t]

        def learn(self, one: Any, encoded: Any) -> None: ...

    def look(n: int) -> Any:
        part = {key: value if key == "n_actions" else value[:n] for key, value in log.items()}
        return evaluate(part, {"logged": "logged", "best": Best()}, always=True)

    few, many = look(200), look(4000)
    assert "may stop" in outlook(many)
    assert "may stop" not in outlook(few)
    once = evaluate(log, {"logged": "logged", "best": Best()})
    for name in ("ips", "snips", "dm", "dr"):
        wide, narrow = many["best"].estimates[name], once["best"].estimates[name]
        assert wide.value == pytest.approx(narrow.value)
        assert wide.low <= 0.6 <= wide.high
        assert wide.high - wide.low > narrow.high - narrow.low


def test_the_command_looks_again_when_the_log_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = feedback(np.random.default_rng(1), 900, 0.0)

    def write(n: int) -> None:
        part = {key: value if key == "n_actions" else value[:n] for key, value in made.items()}
        np.savez(tmp_path / "log.npz", **part)

    write(300)
    sizes = iter([300, 600, 900])

    def sleep(seconds: float) -> None:
        assert seconds == 7
        size = next(sizes, None)
        if size is None:
            raise KeyboardInterrupt
        write(size)

    monkeypatch.setattr(time, "sleep", sleep)
    out = ["--out", str(tmp_path / "out"), "--policies", "logged,uniform", "--watch", "7"]
    told = run.invoke(app, ["evaluate", str(tmp_path / "log.npz"), *out, "--json"])
    assert told.exit_code == 0, told.output
    assert [json.loads(line)["records"] for line in told.stdout.splitlines()] == [300, 600, 900]
    sizes = iter([])
    plain = run.invoke(app, ["evaluate", str(tmp_path / "log.npz"), *out])
    assert plain.exit_code == 0, plain.output
    assert "a verdict would need far more records" in plain.stdout or "more decision" in plain.stdout
