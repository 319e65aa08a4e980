"""Policies that are tried when a better one is looked for: a few near the one in force, and two of another kind."""

from typing import Any

import msgspec

from coterie.errors import CoterieError
from coterie.service.core.policy_config import check_config, same_model
from coterie.service.evaluations.jobs import Candidate
from coterie.service.settings import Config

TRIED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("sparse-hierarchical", "sparse-hierarchical", {}),
    ("less optimism", "sparse-hierarchical", {"explore": 0.0}),
    ("more optimism", "sparse-hierarchical", {"explore": 1.0}),
    ("sharper choices", "sparse-hierarchical", {"gap": 100.0}),
    ("softer choices", "sparse-hierarchical", {"gap": 10.0}),
    ("hierarchical", "hierarchical", {}),
    ("linucb", "linucb", {}),
)


def current(config: Config) -> Candidate:
    """Return the policy in force."""
    return Candidate("current", config.policy, dict(config.parameters), "current")


def candidates(config: Config, shards: Any = None) -> list[Candidate]:
    """Return the policies to try, without the one in force and those that cannot be served so."""
    found = []
    for name, policy, parameters in TRIED:
        if (policy, parameters) == (config.policy, config.parameters):
            continue
        one = Candidate(name, policy, parameters, "search")
        try:
            check_config(with_policy(config, one), shards)
        except CoterieError:
            continue
        found.append(one)
    return found


def with_policy(config: Config, one: Candidate) -> Config:
    """Return the rules with another policy."""
    return same_model(config, msgspec.structs.replace(config, policy=one.policy, parameters=one.parameters))
