"""Personalizer's service and policy configuration, as views of coterie's own.

A change is a record in the log, so it outlives the process. No change empties the model: another policy first
learns the log, then takes over.
"""

import shlex
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from coterie.errors import CoterieError
from coterie.service.core.coordinator import RETENTION, Desk
from coterie.service.core.engine import check_config, make_policy, possible
from coterie.service.durations import format_duration, parse_duration
from coterie.service.personalizer.errors import Refusal
from coterie.service.settings import Config, Mode

BAD = "InvalidServiceConfiguration"
LearningMode = Literal["Online", "Apprentice", "LoggingOnly"]
MODES: dict[LearningMode, Mode] = {
    "Online": "online",
    "Apprentice": "apprentice",
    "LoggingOnly": "logging-only",
}
NAMES = {mode: name for name, mode in MODES.items()}


class ServiceConfiguration(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The contract's object; a field that is not sent stays as it is."""

    reward_wait_time: str | UnsetType = UNSET
    default_reward: Annotated[float, Meta(ge=-1, le=1)] | UnsetType = UNSET
    reward_aggregation: Literal["earliest", "sum"] | UnsetType = UNSET
    exploration_percentage: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    model_export_frequency: str | UnsetType = UNSET
    log_retention_days: Annotated[int, Meta(ge=-1)] | UnsetType = UNSET
    learning_mode: LearningMode | UnsetType = UNSET
    is_auto_optimization_enabled: bool | UnsetType | None = UNSET
    auto_optimization_frequency: str | UnsetType | None = UNSET
    auto_optimization_start_date: str | UnsetType | None = UNSET
    model_retrain_days: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    log_mirror_enabled: bool | UnsetType | None = UNSET
    log_mirror_sas_uri: str | UnsetType | None = UNSET
    last_configuration_edit_date: str | UnsetType | None = UNSET
    latest_available_policy: Any = UNSET


class PolicyContract(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy's name, and its parameters as `--name value`."""

    name: str
    arguments: str


# What has no meaning here, as it is told to those who ask: the model is never older than the last reward.
WITHOUT_MEANING: dict[str, Any] = {
    "model_export_frequency": "PT5M",
    "auto_optimization_frequency": "P7D",
    "model_retrain_days": 0,
}


def show(desk: Desk) -> ServiceConfiguration:
    """Return the configuration; the fields that have no meaning here as they were sent last."""
    config = desk.engine.config
    kept = {name: value for name, value in desk.engine.contract.items() if name != RETENTION}
    return ServiceConfiguration(
        reward_wait_time=format_duration(config.wait),
        default_reward=config.default_reward,
        reward_aggregation=config.aggregation,
        exploration_percentage=config.exploration,
        log_retention_days=int(desk.retention_days),
        learning_mode=NAMES[config.mode],
        is_auto_optimization_enabled=False,
        log_mirror_enabled=False,
        **(WITHOUT_MEANING | kept),
    )


async def change(desk: Desk, sent: ServiceConfiguration) -> None:
    """Take over what was sent, or refuse it whole."""
    if sent.log_mirror_enabled is True:
        message = "coterie never writes to an address it is given; export the log instead, and send false"
        raise Refusal(400, BAD, message, "logMirrorEnabled")
    if sent.is_auto_optimization_enabled is True:
        message = "coterie does not search for other policies by itself; send false"
        raise Refusal(400, BAD, message, "isAutoOptimizationEnabled")
    config = desk.engine.config
    changes: dict[str, Any] = {
        "default_reward": sent.default_reward,
        "aggregation": sent.reward_aggregation,
        "exploration": sent.exploration_percentage,
        "mode": UNSET if sent.learning_mode is UNSET else MODES[sent.learning_mode],
        "wait": _wait(sent.reward_wait_time, config.wait),
    }
    extra = {
        name: getattr(sent, name) for name in (*WITHOUT_MEANING, "auto_optimization_start_date", RETENTION)
    }
    for name in ("model_export_frequency", "auto_optimization_frequency"):
        if isinstance(extra[name], str):
            _duration(extra[name], name, BAD)
    new = msgspec.structs.replace(config, **{k: v for k, v in changes.items() if v is not UNSET})
    said = {k: v for k, v in extra.items() if v is not UNSET and v is not None}
    said["last_configuration_edit_date"] = moment(desk.clock())
    await desk.configure(new, {**desk.engine.contract, **said})


def _wait(sent: str | UnsetType, now: float) -> float | UnsetType:
    if sent is UNSET:
        return UNSET
    seconds = _duration(sent, "rewardWaitTime", "InvalidRewardWaitTime")
    if seconds != now and not 5 <= seconds <= 172_800:
        message = f"rewardWaitTime is {sent!r}, expected 5 seconds (PT5S) to 2 days (P2D)"
        raise Refusal(400, "InvalidRewardWaitTime", message, "rewardWaitTime")
    return seconds


def _duration(text: str, field: str, code: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Refusal(400, code, f"{field}: {error}", field) from error


def show_policy(config: Config) -> PolicyContract:
    """Return the policy with all its parameters, the defaults too."""
    made = make_policy(config, possible(config)[0]).parameters
    plain = {k: v for k, v in made.items() if k not in ("n_features", "one_hot", "rng", "seed")}
    told = {k: v for k, v in (plain | config.parameters).items() if v is not None}
    return PolicyContract(config.policy, " ".join(f"--{k} {_text(v)}" for k, v in told.items()))


async def change_policy(desk: Desk, sent: PolicyContract) -> None:
    """Let another policy learn the log and take over."""
    new = msgspec.structs.replace(
        desk.engine.config, policy=sent.name, parameters=parse_arguments(sent.arguments)
    )
    try:
        check_config(new)
    except CoterieError as error:
        raise Refusal(400, "InvalidPolicyConfiguration", str(error), "arguments") from error
    await desk.configure(new)


def parse_arguments(text: str) -> dict[str, Any]:
    """Return `--alpha 0.1 --eligible all` as parameters.

    >>> parse_arguments("--alpha 0.1 --eligible all")
    {'alpha': 0.1, 'eligible': 'all'}
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Refusal(400, "InvalidPolicyConfiguration", f"arguments: {error}", "arguments") from error
    names, values = words[::2], words[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        message = f"arguments are {text[:200]!r}, expected pairs such as '--alpha 0.1 --gamma 0.2'"
        raise Refusal(400, "InvalidPolicyConfiguration", message, "arguments")
    found = {name[2:].replace("-", "_"): _value(value) for name, value in zip(names, values, strict=True)}
    if len(found) != len(names):
        message = f"arguments are {text[:200]!r}, which name a parameter twice; name each once"
        raise Refusal(400, "InvalidPolicyConfiguration", message, "arguments")
    return found


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _text(value: Any) -> str:
    plain = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return shlex.quote(plain)


def moment(milliseconds: int) -> str:
    """Return a time as the contract writes it."""
    return (
        datetime.fromtimestamp(milliseconds / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
