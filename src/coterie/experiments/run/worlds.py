"""Opens what policies are compared on: a built-in world, a world in a JSON file, a dataset or a log."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from coterie import data
from coterie.data.datasets import DATASETS, open_dataset, part_of
from coterie.data.logs.log import open_log
from coterie.data.logs.log_file import READERS
from coterie.data.rounds import Round
from coterie.errors import FileError, ParameterError


class Source(Protocol):
    """A source of rounds. Synthetic worlds have more methods; callers check with `hasattr`."""

    @property
    def is_log(self) -> bool:
        """Whether only the payoffs of shown items are known; `Traits` has this and more."""

    @property
    def one_hot(self) -> bool:
        """Whether items have ids only, without features."""

    @property
    def n_features(self) -> int | None:
        """How many features an item has; None if items have ids only."""

    def parameters(self) -> dict[str, Any]:
        """Return plain values from which `make_world` makes the same world again."""

    def rounds(self, n_rounds: int, seed: int) -> Iterable[Round]:
        """Return that many rounds, the same for the same seed."""


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


def make_world(parameters: dict[str, Any]) -> Source:
    """Make the world that these parameters describe."""
    kind, settings = parameters.get("kind"), {k: v for k, v in parameters.items() if k != "kind"}
    if kind == "log":
        return open_log(**settings)
    if kind == "part":
        return part_of(make_world(settings["of"]), settings["first"])
    if kind in DATASETS:
        return open_dataset(kind, **settings)
    return data.make_world(parameters)


def whole_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a part's dataset; other parameters are returned unchanged."""
    return whole_of(parameters["of"]) if parameters.get("kind") == "part" else parameters


def _described(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise FileError(f"there is no file {path}") from None
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} is not a JSON object with a world's parameters: {error}") from error
