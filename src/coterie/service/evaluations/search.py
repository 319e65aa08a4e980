"""Policies to try in the search for a better one: variants of the default policy, and two others."""

from typing import Any

import msgspec

from coterie.data.logs.rules import Config
from coterie.errors import CoterieError
from coterie.service.core.policy_config import check_config
from coterie.service.evaluations.jobs import EvaluatedPolicy

TRIED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("hierarchical", "hierarchical", {}),
    ("no optimism", "hierarchical", {"explore": 0.0}),
    ("less exploration", "hierarchical", {"explore": 0.5}),
    ("more exploration", "hierarchical", {"explore": 2.0}),
    ("linucb", "linucb", {}),
)


def current(config: Config) -> EvaluatedPolicy:
    """Return the current policy."""
    return EvaluatedPolicy("current", config.policy, dict(config.parameters), "current")


def candidates(config: Config, engine: Any = None) -> list[EvaluatedPolicy]:
    """Return the policies to try, without the current one and those that this service cannot run."""
    found = []
    for name, policy, parameters in TRIED:
        if (policy, parameters) == (config.policy, config.parameters):
            continue
        one = EvaluatedPolicy(name, policy, parameters, "search")
        try:
            check_config(with_policy(config, one), engine)
        except CoterieError:
            continue
        found.append(one)
    return found


def with_policy(config: Config, one: EvaluatedPolicy) -> Config:
    """Return the configuration with another policy, and with its exploration and ignored features if it has them."""
    exploration = config.exploration if one.exploration is None else one.exploration
    ignored = one.ignored or config.ignored
    return msgspec.structs.replace(
        config, policy=one.policy, parameters=one.parameters, exploration=exploration, ignored=ignored
    )


def policies_of(
    custom: list[EvaluatedPolicy], search: bool, config: Config, engine: Any
) -> tuple[EvaluatedPolicy, ...]:
    """Return the policies to replay: the current one, the requested ones, and those of the search."""
    tried = candidates(config, engine) if search else []
    names = {one.name for one in custom}
    return (current(config), *custom, *(one for one in tried if one.name not in names))
