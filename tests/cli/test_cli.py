"""The command line as a stranger meets it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.cli import main
from coterie.cli.app import COMMANDS, read_command
from coterie.experiments import Run, read_header, record

WORLD = {"kind": "one-hot", "n_users": 12, "n_items": 8, "n_candidates": 4}


@pytest.fixture
def world(tmp_path: Path) -> str:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(WORLD))
    return str(path)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run `coterie` with these words in this process, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def small(world: str, out: Path, *more: str) -> list[str]:
    words = ["compare", world, "--rounds", "200", "--runs", "2", "--workers", "1"]
    return [*words, "--out", str(out), *more]


def test_version_and_help_are_what_a_stranger_expects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"coterie {coterie.__version__}\n"
    assert call(monkeypatch, "--help") == 0
    assert "compare" in capsys.readouterr().out
    assert call(monkeypatch, "compare", "--help") == 0
    text = capsys.readouterr().out
    for option in ("WORLD|LOG", "--policies", "--rounds", "--runs", "--seed", "--out", "--json"):
        assert option in text
    assert call(monkeypatch, "compair") == 2
    assert "Did you mean 'compare'?" in capsys.readouterr().err
    assert call(monkeypatch) == 2
    assert "Usage: coterie [OPTIONS] COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["nonsense"]])
def test_version_and_help_import_nothing_that_a_command_needs(words: list[str]) -> None:
    """They answer at once: NumPy, Numba and all else are imported by the command that is called."""
    code = (
        "import sys, contextlib, coterie.cli\n"
        f"sys.argv = ['coterie', *{words}]\n"
        "with contextlib.suppress(SystemExit): coterie.cli.main()\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    imported = set(done.stderr.splitlines()[-1].split()) - sys.stdlib_module_names
    assert "typer" in imported
    heavy = {
        "numpy",
        "numba",
        "scipy",
        "safetensors",
        "matplotlib",
        "polars",
        "pyarrow",
        "rich",
        "threadpoolctl",
    }
    assert not imported & (heavy | {"litestar", "msgspec", "uvicorn", "psycopg", "ray", "sklearn"})


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_a_command_says_of_itself(name: str) -> None:
    said = " ".join(str(read_command(name).help).split())
    assert f"{said}\n".startswith(COMMANDS[name].about)


def test_compare_prints_a_table_and_where_the_report_is(
    world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *small(world, tmp_path / "out")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"Report: {tmp_path / 'out' / 'report.html'}"
    assert lines[0].startswith("No clear winner: ")
    assert "2 runs cannot show more; try --runs 10." in " ".join(" ".join(lines).split())
    titles = ("CAB", "LinUCB-SINGLE", "LinUCB-MULTIPLE", "RAN")
    assert sum(line.startswith(titles) and "±" in line for line in lines) == 4
    assert lines[-2].startswith("Next: ") or lines[-3].startswith("Next: ")
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")


def test_json_is_all_there_is_on_stdout_and_equals_the_table(
    world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *small(world, tmp_path / "out", "--json")) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["measure"] == "regret"
    assert found["seeds"] == [0, 1]
    assert found["world_parameters"]["n_users"] == 12
    assert call(monkeypatch, *small(world, tmp_path / "out")) == 0
    shown = capsys.readouterr()
    for policy in found["policies"]:
        [line] = [
            line for line in shown.out.splitlines() if line.startswith(f"{policy['title']} ") and "±" in line
        ]
        lost, ratio, share = policy["regret"], policy["regret_to_random"], policy["share_of_best"]
        assert f"{lost['mean']:,.0f} ± {lost['spread']:,.0f}" in line
        assert f"{ratio['mean']:.0%} ± {ratio['spread']:.0%}" in line
        assert f"{share['mean']:.0%}" in line
        assert len(policy["runs"]) == 2
        assert all(Path(path).exists() for path in policy["traces"])
    assert "14 runs had been played before; to play again, remove" in shown.err
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["atlantis"], "error: unknown world 'atlantis'; choose among music-and-news"),
        (["--policies", "cat"], "error: unknown policy 'cat'; choose among bass, cab, "),
        (["--policies", "cab:alpha=-1"], "error: alpha"),
        (["--rounds", "0"], "error: rounds=0; expected at least 1"),
        (["--seed", "-1"], "error: seed=-1; expected at least 0"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "compare", *words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(message)
    assert said.err.count("\n") == 1


@pytest.mark.slow
def test_an_interrupted_comparison_says_how_to_go_on_and_goes_on(world: str, tmp_path: Path) -> None:
    """Ctrl-C with two workers, then the same command again: the traces are those of an undisturbed one."""
    listen = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's `&` turns it off
    options = ["--policies", "cab,random", "--runs", "1", "--rounds", "5000", "--workers", "2", "--json"]
    words = [
        sys.executable,
        "-c",
        f"import signal; {listen}; import coterie.cli; coterie.cli.main()",
        "compare",
    ]
    words += [world, "--out", str(tmp_path / "out"), *options]

    first = subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 300
    while not list(tmp_path.glob("out/traces/cab*.partial/*.policy")) and time.monotonic() < until:
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=300)
    assert first.returncode == 130
    assert out == ""
    assert f"To continue:\ncoterie compare {world} " in err
    assert "Traceback" not in err
    assert list(tmp_path.glob("out/traces/cab*.partial/*.policy"))

    second = subprocess.run(words, text=True, capture_output=True, timeout=300)
    assert second.returncode == 0, second.stderr
    for policy in json.loads(second.stdout)["policies"]:
        [path] = policy["traces"]
        record(Run.from_header(read_header(path)), tmp_path / "undisturbed.parquet")
        assert Path(path).read_bytes() == (tmp_path / "undisturbed.parquet").read_bytes()
        (tmp_path / "undisturbed.parquet").unlink()


@pytest.mark.parametrize(
    ("module", "missing"), [("coterie.experiments", "polars"), ("coterie.cli.app", "typer")]
)
def test_without_the_extra_the_way_out_is_named(module: str, missing: str) -> None:
    script = (
        "import importlib.util as u; real = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {missing!r} else real(name, *rest)\n"
        f"import {module}"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    assert ended.returncode == 1
    assert "MissingExtraError" in ended.stderr
    assert "pip install 'coterie[experiments]'" in ended.stderr
