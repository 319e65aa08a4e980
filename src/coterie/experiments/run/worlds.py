"""Opens what policies are compared on: a built-in world, a world in a JSON file, a dataset or a log."""

import json
from pathlib import Path

from coterie import data
from coterie.arrays import JsonObject
from coterie.data.datasets import DATASETS, Source, open_dataset
from coterie.data.logs.log import open_log
from coterie.data.logs.log_file import READERS
from coterie.data.worlds.world_as_dataset import Rest
from coterie.errors import FileError, ParameterError


def open_world(text: str) -> Source:
    """Return the world with that name, or the world or log in the file with that path."""
    path = Path(text)
    if text in data.WORLDS:
        return data.WORLDS[text]()
    if text in DATASETS:
        return open_dataset(text)
    if path.suffix.lower() in READERS:
        return open_log(path)
    if path.suffix.lower() == ".json":
        return make_world(_described(path))
    raise ParameterError(
        f"unknown world {text!r}; choose among {', '.join([*data.WORLDS, *DATASETS])}, "
        "or name a .json file with a world's parameters, or a .csv or .parquet log with user, item, payoff"
    )


def make_world(parameters: JsonObject) -> Source:
    """Make the world that these parameters describe."""
    kind, settings = parameters.get("kind"), {k: v for k, v in parameters.items() if k != "kind"}
    if kind == "log":
        return open_log(**settings)
    if kind == "part":
        return Rest(make_world(settings["of"]), settings["first"])
    if kind in DATASETS:
        return open_dataset(kind, **settings)
    return data.make_world(parameters)


def whole_of(parameters: JsonObject) -> JsonObject:
    """Return the parameters of a part's dataset; other parameters are returned unchanged."""
    return whole_of(parameters["of"]) if parameters.get("kind") == "part" else parameters


def _described(path: Path) -> JsonObject:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise FileError(f"there is no file {path}") from None
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} is not a JSON object with a world's parameters: {error}") from error
