"""Datasets by name."""

import os
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from coterie.data.files import VARIABLE
from coterie.data.logs.logged import Logged
from coterie.data.published.avazu import avazu
from coterie.data.published.baskets import Baskets
from coterie.data.published.choices import SURVEYS, Choices
from coterie.data.published.classified import cancer, digits, iris, prompts, wine
from coterie.data.published.dealt import Dealt
from coterie.data.published.delicious import delicious
from coterie.data.published.insteval import insteval
from coterie.data.published.kddcup import kddcup
from coterie.data.published.lastfm import lastfm
from coterie.data.published.movielens import movielens, movielens_repeat
from coterie.data.published.movielens_100k import movielens_100k, movielens_groups, movielens_locb
from coterie.data.published.open_bandit import open_bandit
from coterie.data.published.twins import TWINS, twin
from coterie.data.worlds.world import World
from coterie.data.worlds.world_as_dataset import Rest, Stage
from coterie.errors import ParameterError

Dataset = Dealt | Logged | Stage
Source = World | Dataset | Rest  # of rounds
DATASETS: dict[str, Callable[..., Dataset]] = {
    "lastfm": lastfm,
    "delicious": delicious,
    "movielens": movielens,
    "movielens-repeat": movielens_repeat,
    "kddcup": kddcup,
    "avazu": avazu,
    **{name: partial(twin, name) for name in TWINS},
    "open-bandit": open_bandit,
    "digits": digits,
    "cancer": cancer,
    "wine": wine,
    "iris": iris,
    "prompts": prompts,
    "movielens-100k": movielens_100k,
    "movielens-groups": movielens_groups,
    "movielens-locb": movielens_locb,
    **{name: partial(Choices, name=name) for name in SURVEYS},
    "ta-feng": Baskets,
    "insteval": insteval,
}


class PaperSize(NamedTuple):
    """A row of the paper's Table 1."""

    users: int
    features: int
    candidates: int
    records: int  # retained records, for the advertising data


TABLE_1 = {
    "tuenti": PaperSize(14_612, 105, 15, 1_000_000),
    "kddcup": PaperSize(10_333, 6_780, 20, 100_000),
    "avazu": PaperSize(48_723, 5_099, 20, 1_100_000),
    "lastfm": PaperSize(1_892, 25, 25, 50_000),
    "delicious": PaperSize(1_861, 25, 25, 50_000),
}


def open_dataset(name: str, **settings: Any) -> Dataset:
    """Open a dataset by its name; the settings are the parameters of its function in `DATASETS`."""
    if name not in DATASETS:
        raise ParameterError(f"unknown dataset {name!r}; choose among {', '.join(DATASETS)}")
    try:
        named = tuple(sorted(settings.items(), key=lambda pair: pair[0]))
        return _opened(name, named, os.environ.get(VARIABLE))
    except TypeError as error:
        raise ParameterError(f"dataset {name!r}: {error}") from error


@lru_cache(maxsize=4)
def _opened(name: str, settings: tuple[tuple[str, Any], ...], folder: str | None) -> Dataset:
    """Open a dataset. `folder` is the default data folder; it is a parameter only to be part of the cache key."""
    return DATASETS[name](**dict(settings))
