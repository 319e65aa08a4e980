"""What policies are compared on: a built-in world, a world described in a JSON file, or a log of one's own."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from coterie import data
from coterie.data.datasets import DATASETS, open_dataset, part_of
from coterie.data.logs.log import open_log
from coterie.data.logs.log_file import READERS
from coterie.data.rounds import Round
from coterie.errors import FileError, ParameterError


class World(Protocol):
    """Where rounds come from. Those whose truth is known tell more; `hasattr` finds out."""

    @property
    def one_hot(self) -> bool:
        """Whether items are known by id alone."""

    @property
    def n_features(self) -> int | None:
        """How many features an item has; None if it is known by id alone."""

    def parameters(self) -> dict[str, Any]:
        """Return plain values from which `make_world` makes the same world again."""

    def rounds(self, n_rounds: int, seed: int) -> Iterable[Round]:
        """Return that many rounds, the same for the same seed."""


def open_world(text: str) -> World:
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


def make_world(parameters: dict[str, Any]) -> World:
    """Make the world that `parameters()` of a world described, or take it where it is at hand."""
    if _at_hand is not None and parameters == _at_hand[0]:
        return _at_hand[1]
    kind, settings = parameters.get("kind"), {k: v for k, v in parameters.items() if k != "kind"}
    if kind == "log":
        return open_log(**settings)
    if kind == "part":
        return part_of(make_world(settings["of"]), settings["first"])
    if kind in DATASETS:
        return open_dataset(kind, **settings)
    return data.make_world(parameters)


_at_hand: tuple[dict[str, Any], World] | None = (
    None  # a world that came here with its data, by its parameters
)


def keep_at_hand(parameters: dict[str, Any], fetch: Callable[[], World]) -> None:
    """Let `make_world` take what `fetch` returns for these parameters: the files it needs may not be here."""
    global _at_hand
    if _at_hand is None or parameters != _at_hand[0]:
        _at_hand = (parameters, fetch())


def whole_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of the dataset that a part is of; of anything else, as they are."""
    return whole_of(parameters["of"]) if parameters.get("kind") == "part" else parameters


def _described(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise FileError(f"there is no file {path}") from None
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} is not a JSON object with a world's parameters: {error}") from error
