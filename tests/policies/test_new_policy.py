"""A new policy is one file, one twin and one row of the docs: `new_policy/` has the two files of the smallest one.

They are found as if they were in `src/coterie/policies` and `tests/twins`, in a process of their own.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOUND = f"""
import sys
import coterie.policies, tests.twins
coterie.policies.__path__.append({str(HERE / "new_policy" / "policies")!r})
tests.twins.__path__.append({str(HERE / "new_policy" / "twins")!r})
coterie.policies.discover()
"""


def output(code: str) -> str:
    """Run code after the new policy was found, and return what it prints."""
    command = [sys.executable, "-c", FOUND + code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_policy_is_in_the_contract_suite_with_its_twin() -> None:
    suite = ["-p", "no:cacheprovider", "-v", str(HERE / "test_contract.py"), "-k", "epsilon-greedy"]
    told = output(f"import pytest; sys.exit(pytest.main({suite!r}))")
    for kind in ("vectors", "items"):
        assert f"test_choices_are_those_of_the_twin[epsilon-greedy-{kind}] PASSED" in told


def test_a_new_policy_is_tuned_listed_played_and_loaded(tmp_path: Path) -> None:
    told = output(f"""
import json
from pathlib import Path
from typer.testing import CliRunner
import coterie
from coterie.cli.app import app
from coterie.experiments import open_world
from coterie.experiments.run.runs import Run
from coterie.experiments.run.specs import parse_spec
from coterie.experiments.study.tuning import quick_grid, read_score, score, settings
folder = Path({str(tmp_path)!r})
coterie.EpsilonGreedy(one_hot=True).save(folder / "model")
spec = parse_spec("epsilon-greedy")
run = Run.of(spec, open_world("music-and-news"), 0, 50)
score(run, folder / "score.json")
print(json.dumps([
    [one.text for one in settings(spec, quick_grid(10))],
    [one["name"] for one in json.loads(CliRunner().invoke(app, ["policies", "--json"]).stdout)],
    [spec.title, read_score(folder / "score.json", run).n_rounds],
    repr(coterie.load(folder / "model")),
]))
""")
    tuned, listed, played, loaded = json.loads(told.splitlines()[-1])
    assert tuned == ["epsilon-greedy:epsilon=0.01", "epsilon-greedy:epsilon=0.1"]
    assert listed[-3:] == ["epsilon-greedy", "vw", "random"]
    assert played == ["EpsilonGreedy", 50]
    assert loaded == "EpsilonGreedy(one_hot=True), 0 users, 0 payoffs learned"
