"""A policy from the configuration: checked and made."""

import inspect
from functools import cache
from typing import Any

import msgspec

from coterie.data.logs.records import Configure, Kind, encode
from coterie.data.logs.rules import Config
from coterie.errors import CoterieError, ParameterError
from coterie.policies import POLICIES, Policy
from coterie.policies.cab import Engine
from coterie.service.core.guardrails import check_guardrails
from coterie.service.trial.assignment import challenger_of, check_shares

SEPARATE: tuple[Kind, ...] = ("items", "vectors")  # of policies that do not learn both in one model
OURS = {  # parameters of a constructor that the service sets itself
    "engine": "the service sets it; start with `coterie serve --engine cuda`",
    "floor": "it is the service's `exploration`",
    "friends": "they are kept per user; set them with `PUT /v1/users/{id}/friends`",
    "n_features": "it is the service's `dimensions`",
    "one_hot": "actions with features and without have a model each",
    "rng": "the service draws from event ids, so that a replay decides alike",
}


def takes_names(config: Config) -> bool:
    """Return whether the configured policy is one model of ids, features, contexts and users."""
    known = POLICIES.get(config.policy)
    return known is not None and known.takes_names


@cache
def accepts(policy: str, parameter: str) -> bool:
    """Return whether a policy has a parameter."""
    return policy in POLICIES and parameter in inspect.signature(POLICIES[policy]).parameters


def takes_ids(policy: str) -> bool:
    """Return whether a policy can decide between ids. Those that cannot are given the ids as hashed features."""
    return accepts(policy, "one_hot")


def takes_friends(config: Config) -> bool:
    """Return whether the configured policy learns from users' friends."""
    return takes_names(config) and accepts(config.policy, "friends")


def same_model(config: Config, like: Config) -> Config:
    """Return `config` with the model of `like`."""
    model = {"policy": like.policy, "parameters": like.parameters, "dimensions": like.dimensions}
    return msgspec.structs.replace(config, **model)


def check_config(config: Config, engine: Engine | None = None) -> None:
    """Raise if the policy or the challenger cannot be made or kept on the device, or a guardrail cannot hold."""
    check_shares(config)
    check_guardrails(config)
    encode(Configure(0, config))  # raises if the log cannot hold it
    other = challenger_of(config)
    for one in (config,) if other is None else (config, other):
        kinds = possible(one)
        if engine is not None:
            for kind in kinds:
                make_policy(one, kind, engine)


def possible(config: Config) -> list[Kind]:
    """Return the kinds of contexts that the policy takes; raises if there is none."""
    if takes_names(config):
        make_policy(config, "model")
        return ["model"]
    found: list[Kind] = []
    reason = ParameterError("")
    for kind in SEPARATE:
        try:
            make_policy(config, kind)
            found.append(kind)
        except ParameterError as error:
            reason = error
    if not found:
        raise reason
    return found


def make_policy(config: Config, kind: Kind, engine: Engine | None = None) -> Policy:
    """Return the configured policy, empty."""
    if config.policy not in POLICIES:
        raise ParameterError(f"policy is {config.policy!r}, expected one of {', '.join(sorted(POLICIES))}")
    given: dict[str, Any] = {}
    if kind == "items":
        given["one_hot"] = True
    elif kind == "vectors":
        given["n_features"] = config.dimensions
    if accepts(config.policy, "floor"):
        given["floor"] = 0.0  # the service adds its own share of uniform choices
    for name, why in OURS.items():
        if name in config.parameters:
            raise ParameterError(f"{name!r} cannot be a parameter of the policy: {why}")
    if engine is not None:
        if "engine" not in POLICIES[config.policy].not_saved:
            raise ParameterError(
                f"the policy {config.policy!r} cannot be kept on a device, cab can; leave out `engine`"
            )
        if kind != "items":  # over item ids a decision does not grow with the number of users
            given["engine"] = engine
    try:
        return POLICIES[config.policy](**given, **config.parameters)
    except CoterieError:
        raise
    except Exception as error:  # a constructor may raise anything for a value that it does not expect
        raise ParameterError(f"policy {config.policy!r} does not take these parameters: {error}") from error
