"""One way for each thing on the command line."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coterie.bench.measuring import Measured
from coterie.cli import main
from coterie.cli.app import COMMANDS, app, read_command
from coterie.cli.shared.options import read_settings_given, split_settings
from coterie.cli.shared.tables import result_table
from coterie.cli.studies import bench
from coterie.errors import ParameterError

VERSIONS = (Path(__file__).parents[2] / "docs" / "versions.md").read_text()


def everything() -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its name."""
    for name in COMMANDS:
        found = read_command(name)
        for inner, one in getattr(found, "commands", {"": found}).items():
            yield f"{name} {inner}".strip(), one


def options(name: str) -> dict[str, tuple[str, bool]]:
    """Return help and kind of this option in every command that has it."""
    return {
        command: (option.help, getattr(option, "is_flag", False))
        for command, one in everything()
        for option in one.params
        if name in option.opts and not getattr(option, "hidden", False)
    }


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", ["--json", "--settings", "--store", "--data"])
def test_an_option_is_the_same_in_every_command(name: str) -> None:
    found = {command: kind for command, kind in options(name).items() if command != "serve"}
    assert len(found) > 1
    assert len(set(found.values())) == 1, found
    if name == "--json":
        assert {flag for _, flag in found.values()} == {True}


def test_commands_that_print_a_result_have_json() -> None:
    without = {command for command, _ in everything()} - set(options("--json"))
    assert without == {
        "serve", "keys new", "keys drop", "store export", "store import", "store cut", "store repair", "data get",
    }  # fmt: skip


def test_the_list_of_commands_fits_its_lines() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    for name, listed in COMMANDS.items():
        assert any(line.split() == [name, *listed.about.split()] for line in shown.splitlines()), name


def test_settings_are_pairs_and_files_and_later_ones_count(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('pool = "all"\nn_rounds = 5\n')
    found = read_settings_given([str(file), "n_rounds=7", "draw=some words"])
    assert found == {"pool": "all", "n_rounds": 7, "draw": "some words"}
    assert split_settings([str(file), "snapshot-every=7"]) == (file, {"snapshot_every": 7})
    with pytest.raises(ParameterError, match="2 files of settings are given, expected one"):
        split_settings([str(file), str(file)])
    with pytest.raises(ParameterError, match=r"'pool' is not name=value, nor a \.toml file"):
        split_settings(["pool"])
    file.write_text("pool =")
    with pytest.raises(ParameterError, match="cannot read the settings"):
        read_settings_given([str(file)])


def test_tables_fit_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    numbers = ["1,083,000 ± 25,000", "0.15 ± 0.00", "83.6% ± 0.4%", "1,033.9", "100%"]
    body = [["Hierarchical (alpha=0.05, gamma=0.1, items=features)", *numbers], ["LinUCB-MULTIPLE", *numbers]]
    head = ["policy", "lost (regret)", "RAN's is 1", "earned", "asked", "shared"]
    from rich.console import Console

    Console().print(result_table("music-and-news: 10,000 rounds", head, body))
    row = Measured("decisions", "MovieLens, lists that repeat", 0.3333, "of a random choice's regret",
              "0.388, Vowpal Wabbit's best of five (--squarecb --gamma_scale 1000)", 0.859, "< 1", True)  # fmt: skip
    bench._print([row])
    assert call(monkeypatch, "policies") == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    assert "LinUCB-MULTIPLE" in shown  # in one line
    for number in (*numbers, "0.859"):
        assert number in shown
