"""Synthetic worlds: the built-in ones by name, and any other from its parameters."""

from dataclasses import fields
from typing import NamedTuple

from coterie.arrays import JsonObject
from coterie.data.worlds.dense_world import DenseWorld
from coterie.data.worlds.one_hot_world import OneHotWorld
from coterie.data.worlds.sparse_world import SparseWorld
from coterie.data.worlds.world import World
from coterie.errors import ParameterError

__all__ = ["WORLDS", "DenseWorld", "OneHotWorld", "Recipe", "SparseWorld", "World", "make_world"]

KINDS: dict[str, type[World]] = {kind.kind: kind for kind in (OneHotWorld, DenseWorld, SparseWorld)}


def make_world(parameters: JsonObject) -> World:
    """Make the world that `World.parameters` describes; parameters left out take their defaults.

    >>> make_world({"kind": "one-hot", "n_items": 12}).n_clusters(0)
    2
    """
    named = dict(parameters)
    kind = named.pop("kind", None)
    if kind not in KINDS:
        raise ParameterError(f"kind of world is {kind!r}, expected one of: {', '.join(KINDS)}")
    known = [field.name for field in fields(KINDS[kind])]
    for name in named:
        if name not in known:
            raise ParameterError(
                f"a {kind} world has no parameter {name!r}, expected any of: {', '.join(known)}"
            )
    return KINDS[kind](**named)


class Recipe(NamedTuple):
    """A built-in world: a one-line description and its parameters. Call it with a seed to make the world."""

    about: str
    parameters: JsonObject

    def __call__(self, seed: int = 0) -> World:
        return make_world({**self.parameters, "seed": seed})


# The first is the default.
WORLDS: dict[str, Recipe] = {
    "music-and-news": Recipe(
        "users who agree on music and disagree on news: 300 users, 20 items in 2 families, ratings",
        {"kind": "one-hot", "n_families": 2, "gap": 0.4, "noise": 0.2},
    ),
    "clicks": Recipe(
        "the same with 4 families of items and payoffs of 0 or 1: harder to tell users apart",
        {"kind": "one-hot"},
    ),
    "dense": Recipe(
        "the same idea with features: 200 users, 12 features, 3 families, new items every round",
        {"kind": "dense"},
    ),
    "sparse": Recipe(
        "few of many features matter: 200 features, 5 of them to each of 4 clusters, 20 users",
        {"kind": "sparse", "n_features": 200},
    ),
    "turnover": Recipe(
        "clicks while users join and leave: a tenth of them every 1,000 rounds",
        {"kind": "one-hot", "turnover": 0.1},
    ),
    "drifting": Recipe(
        "ratings while tastes change: those of a quarter of 40 users every 1,000 rounds",
        {"kind": "one-hot", "n_users": 40, "n_families": 2, "gap": 0.4, "noise": 0.2, "drift": 0.25},
    ),
    "zipf": Recipe(
        "clicks where a few users come often and most come rarely", {"kind": "one-hot", "popularity": "zipf"}
    ),
    "lonely": Recipe(
        "every user a cluster of its own, where sharing does not help: 40 users, 20 items",
        {"kind": "one-hot", "n_users": 40, "clusters_per_family": 40, "gap": 0.025},
    ),
}
