"""Personalizer's service and policy configuration, translated from and to coterie's own.

A change is a record in the log, so it survives a restart. No change empties the model: another policy first learns
the log, then takes over.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from coterie.data.logs.rules import Aggregation, Config, Mode
from coterie.errors import ParameterError
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.coordination.rules import RETENTION, retention_days
from coterie.service.core.policy_config import OURS, check_config, make_policy, possible
from coterie.service.durations import format_duration, parse_duration
from coterie.service.evaluations.jobs import moment
from coterie.service.evaluations.schedule import ENABLED, FREQUENCY, START, defaults
from coterie.service.http.compatible import Refusal
from coterie.service.personalizer.bodies import read_time
from coterie.service.personalizer.learning_settings import read_settings

BAD = "InvalidServiceConfiguration"
LearningMode = Literal["Online", "Apprentice", "LoggingOnly"]
MODES: dict[LearningMode, Mode] = {
    "Online": "online",
    "Apprentice": "apprentice",
    "LoggingOnly": "logging-only",
}
NAMES = {mode: name for name, mode in MODES.items()}


class ServiceConfiguration(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """The contract's object; fields that are not sent, or null, stay as they are."""

    reward_wait_time: str | None = None
    default_reward: Annotated[float, Meta(ge=-1, le=1)] | None = None
    reward_aggregation: Aggregation | None = None
    exploration_percentage: Annotated[float, Meta(ge=0, le=1)] | None = None
    model_export_frequency: str | None = None
    log_retention_days: Annotated[int, Meta(ge=-1)] | None = None
    learning_mode: LearningMode | None = None
    is_auto_optimization_enabled: bool | None = None
    auto_optimization_frequency: str | None = None
    auto_optimization_start_date: str | None = None
    model_retrain_days: Annotated[int, Meta(ge=0)] | None = None
    log_mirror_enabled: bool | None = None
    log_mirror_sas_uri: str | None = None
    last_configuration_edit_date: str | None = None  # set here, whatever is sent
    is_inference_explainability_enabled: bool | None = None
    latest_available_policy: Any = None


class PolicyContract(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy's name, and its parameters as `--name value`."""

    name: str
    arguments: str


NEVER = "0001-01-01T00:00:00Z"  # as Personalizer answers a date that was not set
EDITED = "last_configuration_edit_date"
SENT = "learning_settings"  # name, arguments, and the policy that was in force when they were sent
# Fields without a meaning here, and their first answers: the model always includes the last reward, every decision
# can be explained, and the log is never written to an address that a caller gave.
WITHOUT_MEANING: dict[str, Any] = {
    "model_export_frequency": "PT5M",
    "model_retrain_days": 0,
    "is_inference_explainability_enabled": False,
    "log_mirror_enabled": False,
}
LEAST_FREQUENCY = 3600.0  # seconds between two automatic optimisations


def show(coordinator: Coordinator) -> ServiceConfiguration:
    """Return the configuration; fields without a meaning here are returned as last sent."""
    config = coordinator.bandit.config
    kept = {
        name: value for name, value in coordinator.bandit.contract.items() if name not in (RETENTION, SENT)
    }
    return ServiceConfiguration(
        reward_wait_time=format_duration(config.wait),
        default_reward=config.default_reward,
        reward_aggregation=config.aggregation,
        exploration_percentage=config.exploration,
        log_retention_days=int(retention_days(coordinator.settings, coordinator.bandit)),
        learning_mode=NAMES[config.mode],
        **({START: NEVER, EDITED: NEVER} | WITHOUT_MEANING | defaults(coordinator.settings) | kept),
    )


async def change(coordinator: Coordinator, sent: ServiceConfiguration) -> None:
    """Apply all that was sent, or refuse all of it."""
    config = coordinator.bandit.config
    changes: dict[str, Any] = {
        "default_reward": sent.default_reward,
        "aggregation": sent.reward_aggregation,
        "exploration": sent.exploration_percentage,
        "mode": sent.learning_mode and MODES[sent.learning_mode],
        "wait": _wait(sent.reward_wait_time, config.wait),
    }
    extra = {name: getattr(sent, name) for name in (*WITHOUT_MEANING, ENABLED, FREQUENCY, START, RETENTION)}
    if sent.model_export_frequency is not None:
        _duration(sent.model_export_frequency, "modelExportFrequency", BAD)
    _check_optimisation(sent.auto_optimization_frequency, sent.auto_optimization_start_date)
    new = msgspec.structs.replace(config, **{k: v for k, v in changes.items() if v is not None})
    said = {k: v for k, v in extra.items() if v is not None}
    said[EDITED] = moment(coordinator.clock())
    await coordinator.configure(new, {**coordinator.bandit.contract, **said})


def _check_optimisation(frequency: str | None, start: str | None) -> None:
    if frequency is not None:
        name = "autoOptimizationFrequency"
        if _duration(frequency, name, BAD) < LEAST_FREQUENCY:
            raise Refusal(400, BAD, f"{name} is {frequency!r}, expected an hour (PT1H) or more", name)
    if start is not None:
        read_time(start, "autoOptimizationStartDate", BAD)


def _wait(sent: str | None, now: float) -> float | None:
    if sent is None:
        return None
    seconds = _duration(sent, "rewardWaitTime", "InvalidRewardWaitTime")
    if seconds != now and not 5 <= seconds <= 172_800:
        message = f"rewardWaitTime is {sent!r}, expected 5 seconds (PT5S) to 2 days (P2D)"
        raise Refusal(400, "InvalidRewardWaitTime", message, "rewardWaitTime")
    return seconds


def _duration(text: str, field: str, code: str) -> float:
    # As v1.0 also writes it: 00:10:00, 1.00:00:00 or 00:10:00.5000000.
    clock = re.fullmatch(r"(?:(\d{1,3})\.)?(\d{1,2}):(\d{2}):(\d{2}(?:\.\d{1,7})?)", text)
    if clock is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return 86_400 * days + 3_600 * hours + 60 * minutes + seconds
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Refusal(400, code, f"{field}: {error}", field) from error


def show_policy(config: Config, contract: Mapping[str, Any]) -> PolicyContract:
    """Return the policy with all its parameters, including defaults; or Vowpal Wabbit's arguments as sent."""
    name, arguments, *own = contract.get(SENT, (None, None))
    if own == [config.policy, config.parameters]:
        return PolicyContract(name, arguments)
    made = make_policy(config, possible(config)[0]).parameters
    plain = {k: v for k, v in made.items() if k not in (*OURS, "seed")}
    told = {k: v for k, v in (plain | config.parameters).items() if v is not None}
    return PolicyContract(config.policy, written(told))


def written(parameters: Mapping[str, Any]) -> str:
    """Return parameters as arguments.

    >>> written({"alpha": 0.1, "gamma": 0.2})
    '--alpha 0.1 --gamma 0.2'
    """
    return " ".join(f"--{k} {_text(v)}" for k, v in parameters.items())


async def change_policy(coordinator: Coordinator, sent: PolicyContract) -> str:
    """Let another policy learn the log and take over, or apply what Vowpal Wabbit's arguments have in common with it.

    Returns which policy is in force, and what was mapped.
    """
    config = coordinator.bandit.config
    try:
        mapped = read_settings(sent.arguments)
        if mapped is not None:
            kept = [sent.name, sent.arguments, config.policy, config.parameters]
            await coordinator.configure(mapped.applied_to(config), coordinator.bandit.contract | {SENT: kept})
            return mapped.told(config.policy)
        parameters = parse_arguments(sent.arguments)
        new = msgspec.structs.replace(config, policy=sent.name, parameters=parameters)
        check_config(new)
    except ParameterError as error:
        raise _refuse_arguments(str(error)) from error
    await coordinator.configure(new, without_settings(coordinator))
    return f"policy={new.policy}"


def without_settings(coordinator: Coordinator) -> dict[str, Any]:
    """Return the contract without Vowpal Wabbit's arguments."""
    return {name: value for name, value in coordinator.bandit.contract.items() if name != SENT}


def parse_arguments(text: str) -> dict[str, Any]:
    """Return `--alpha 0.1 --gamma 0.2` as parameters.

    >>> parse_arguments("--alpha 0.1 --gamma 0.2")
    {'alpha': 0.1, 'gamma': 0.2}
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _refuse_arguments(f"arguments: {error}") from error
    names, values = words[::2], words[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        raise _refuse_arguments(f"arguments are {text[:200]!r}, expected pairs, as '--alpha 0.1 --gamma 0.2'")
    found = {name[2:].replace("-", "_"): _value(value) for name, value in zip(names, values, strict=True)}
    if len(found) != len(names):
        raise _refuse_arguments(f"arguments are {text[:200]!r}, which name a parameter twice; name each once")
    return found


def _refuse_arguments(message: str) -> Refusal:
    return Refusal(400, "InvalidPolicyConfiguration", message, "arguments")


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _text(value: Any) -> str:
    plain = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return shlex.quote(plain)
