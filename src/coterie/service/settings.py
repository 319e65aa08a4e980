"""Settings: a TOML file, overridden by the environment, overridden by flags.

`Config` is what decisions depend on: it is in the log, so that a replay decides as the service did. `Settings` is how
one process runs: where it listens, where its log is, what it refuses.
"""

import os
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from coterie.errors import ParameterError

Share = Annotated[float, Meta(ge=0, le=1)]
Payoff = Annotated[float, Meta(ge=-1, le=1)]
Count = Annotated[int, Meta(ge=1, le=2**53)]  # JSON numbers are exact up to here
Mode = Literal["online", "apprentice", "logging-only"]
Aggregation = Literal["earliest", "sum"]


class Challenger(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Another policy that decides for a share of the users, to compare it with the current one."""

    policy: str
    share: Share
    parameters: dict[str, Any] = {}


class Config(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What decisions and learning depend on. A change is a record in the log."""

    policy: str = "sparse-hierarchical"
    parameters: dict[str, Any] = {}  # of the policy's constructor, except the kind of context
    dimensions: Annotated[int, Meta(ge=2, le=1024)] = 32  # of the vectors that features are hashed into
    exploration: Share = 0.02  # the share of decisions with a uniform choice; 0 always shows the best
    # The other decisions. gaps: the lower an action's estimate, the less often it is shown, for policies that give
    # probabilities; epsilon, and with every other policy: the best action.
    explore: Literal["gaps", "epsilon"] = "gaps"
    wait: Annotated[float, Meta(ge=0.001, le=172_800)] = 600.0  # seconds for a reward to arrive
    default_reward: Payoff = 0.0  # learned if none arrived in time
    aggregation: Aggregation = "earliest"
    mode: Mode = "online"
    max_events: Count = (
        200_000  # remembered; the oldest is dropped, with the default reward if it still waited
    )
    max_users: Count = 1_000_000  # the user not seen for longest is dropped, from the model too
    max_items: Count = 100_000  # ids without features; a rank with one more is refused
    record_reasons: bool = True  # log scores, widths and neighbours of each decision
    # Not written if not set, so that logs without a trial do not change.
    holdback: Share | UnsetType = UNSET  # the share of users who are shown the baseline
    challenger: Challenger | UnsetType = UNSET


class Durability(StrEnum):
    """What a power cut may lose. kill −9 loses nothing in either case."""

    LOSE_NOTHING = "lose-nothing"  # answered after the sync
    LOSE_ONE_SECOND = "lose-one-second"  # answered after the write, synced every second


class Settings(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """How one process runs."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    store: str = "coterie.db"  # a file for SQLite, or postgresql://…
    durability: Durability = Durability.LOSE_NOTHING
    engine: str | None = (
        None  # where users' models are, such as ray://host:10001?shards=16; None: in this process
    )
    when_down: Literal["partial", "refuse"] = "partial"  # while a shard is rebuilt: partial answers, or 503
    snapshot_every: Count = 100_000  # records
    retention_days: Annotated[float, Meta(ge=-1)] = -1  # −1 keeps the log forever
    user_path: str = "user.id"  # where the compatible API finds the user in the context features
    max_body: Count = 1_000_000  # bytes
    max_headers: Annotated[int, Meta(ge=1_024)] = 16_384  # bytes, including the address
    max_actions: Annotated[int, Meta(ge=1, le=1000)] = 50
    max_features: Count = 2_000  # of a request, after flattening
    max_queue: Count = 10_000  # requests that wait for their turn or for the disk; more are answered 503
    max_connections: Count = 1_000  # open at once; more are answered 503 and closed
    headers_within: Annotated[float, Meta(gt=0)] = 10.0  # seconds that the headers of a request may take
    body_within: Annotated[float, Meta(gt=0)] = (
        30.0  # seconds that a body may take, or the reading of an answer
    )
    rate: Annotated[float, Meta(ge=0)] = 0.0  # requests per second and client; 0 is no limit
    stop_within: Annotated[float, Meta(gt=0)] = 30.0  # seconds a graceful stop may take
    max_evaluations: Count = 100  # stored; more are refused until one is deleted
    max_evaluated: Count = 100_000  # decisions in one evaluation: the newest
    evaluation_within: Annotated[float, Meta(gt=0)] = 3_600.0  # seconds that one may take
    optimise_days: Annotated[float, Meta(ge=0)] = 0.0  # between two automatic optimisations; 0 is never
    tls_certificate: str | None = None
    tls_key: str | None = None
    telemetry: str | None = (
        None  # where spans are sent, such as http://127.0.0.1:4318; OTEL_* variables work too
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = False  # one line per request
    keys: dict[str, str] = {}  # "name:scope+scope" → SHA-256 of the key, as `coterie keys new --toml` prints
    config: Config = Config()
    given: frozenset[str] | None = None  # which settings were given; None: all of them

    def names(self, field: str) -> bool:
        """Return whether a field, such as `port` or `config.wait`, was given for this start."""
        return self.given is None or field in self.given


def starting_config(settings: Settings, stored: Config) -> Config:
    """Return the configuration of a start: what its settings name, and else what is stored.

    Settings that name a policy replace the parameters too; parameters alone are those of the stored policy.
    """
    names = {name for name in Config.__struct_fields__ if settings.names(f"config.{name}")}
    if "policy" in names:
        names.add("parameters")
    return msgspec.structs.replace(stored, **{name: getattr(settings.config, name) for name in names})


ENVIRONMENT = "COTERIE_"


def read_settings(
    path: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    policy: str | None = None,
    **flags: Any,
) -> Settings:
    """Return settings from a TOML file, then `COTERIE_*` variables, then flags that are not None."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ParameterError(f"cannot read the settings {path}: {error}") from error
    names = {field.encode_name: field.type for field in msgspec.structs.fields(Settings)}
    for name, text in sorted((os.environ if environment is None else environment).items()):
        option = name.removeprefix(ENVIRONMENT).lower().replace("_", "-")
        if name.startswith(ENVIRONMENT) and option in names and option not in ("config", "keys", "given"):
            values[option] = text
    values |= {name.replace("_", "-"): value for name, value in flags.items() if value is not None}
    if "given" in values:
        raise ParameterError("the settings cannot be used: Object contains unknown field `given`")
    if policy is not None:
        values["config"] = {**values.get("config", {}), "policy": policy}
    named = {name.replace("-", "_") for name in values}
    if isinstance(values.get("config"), dict):
        named |= {f"config.{name.replace('-', '_')}" for name in values["config"]}
    try:
        # Environment variables are text, so numbers may be text: hence strict=False.
        return msgspec.convert({**values, "given": named}, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ParameterError(f"the settings cannot be used: {error}") from error
