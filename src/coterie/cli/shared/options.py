"""Options with the same meaning in every command."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from coterie.arrays import JsonObject
from coterie.errors import ParameterError

VARIABLE = "COTERIE_DATA"  # as in `coterie.data.files`, which commands of the service do not import

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", envvar=VARIABLE, help="Folder with the data files.", show_envvar=True),
]
StoreOption = Annotated[str, typer.Option("--store", help="The service's store: a file, or postgresql://…")]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="Replace what is there.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--settings", metavar="NAME=VALUE|FILE.toml", help="A setting, or a file of settings. Repeatable."
    ),
]
OutOption = Annotated[
    Path, typer.Option(help="Folder for everything; each dataset or log has its own in it.")
]
RunsOption = Annotated[int | None, typer.Option(help="Runs of each policy. [default: 5; quick: 2]")]
SeedOption = Annotated[int, typer.Option(help="Seed of the first run; the next has seed + 1.")]
TuningRunsOption = Annotated[int, typer.Option(help="Runs over which each setting is tuned.")]
WorkersOption = Annotated[int | None, typer.Option(help="Worker processes. [default: one per core]", min=1)]


def read_pairs(texts: Sequence[str]) -> JsonObject:
    """Return the settings of texts name=value, whose values are JSON or else plain text; the last one counts."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ParameterError(f"setting {text!r} is not name=value, nor a .toml file")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def is_file(text: str) -> bool:
    """Return whether a setting is the name of a file of settings."""
    return "=" not in text and text.endswith(".toml")


def read_settings_given(texts: Sequence[str]) -> JsonObject:
    """Return all settings of files and of texts name=value; the last one counts."""
    found: JsonObject = {}
    for text in texts:
        if not is_file(text):
            found |= read_pairs([text])
            continue
        try:
            found |= tomllib.loads(Path(text).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ParameterError(f"cannot read the settings {text}: {error}") from error
    return found


def split_settings(texts: Sequence[str]) -> tuple[Path | None, JsonObject]:
    """Return the file among the service's settings, and the settings given as name=value."""
    files = [text for text in texts if is_file(text)]
    if len(files) > 1:
        raise ParameterError(f"{len(files)} files of settings are given, expected one: {', '.join(files)}")
    pairs = read_pairs([text for text in texts if not is_file(text)])
    return Path(files[0]) if files else None, {name.replace("-", "_"): value for name, value in pairs.items()}
