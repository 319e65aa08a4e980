"""Settings: a TOML file, then the environment, then flags; a later one overrides an earlier one.

`Config` is what decisions depend on: it goes into the log, so that a replay decides as the service did.
`Settings` is how one process runs: where it listens, where it keeps its log, what it refuses.
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
Count = Annotated[int, Meta(ge=1, le=2**53)]  # integers that a JSON number represents exactly
Mode = Literal["online", "apprentice", "logging-only"]
Aggregation = Literal["earliest", "sum", "average"]


class Challenger(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Another policy that decides for a share of the users, to be compared with the configured one."""

    policy: str
    share: Share
    parameters: dict[str, Any] = {}


class Cap(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A user is shown an action at most `looks` times within `period` seconds."""

    looks: Count
    period: Annotated[float, Meta(gt=0, le=31_536_000)]
    action: str | None = None  # its id; None is each action by itself


class Budget(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What decisions may cost: on average each, per day of UTC, or in total within `days` from now."""

    amount: Annotated[float, Meta(ge=1e-12, le=1e12)]
    per: Literal["decision", "day", "total"] = "decision"
    days: Annotated[float, Meta(gt=0, le=36_500)] = 30.0  # for a total


PartName = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$(?!\n)")]
PartValue = Annotated[float, Meta(ge=-1e9, le=1e9)]


class Guardrail(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="kebab"):
    """The average of a part of the rewards is at most, or at least, a bound."""

    part: PartName
    most: PartValue | None = None
    least: PartValue | None = None
    scope: Literal["loop", "trial"] = "loop"

    @property
    def bound(self) -> float:
        """The bound, of which there is one."""
        return self.most if self.most is not None else self.least or 0.0


class Config(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What decisions and learning depend on. A change of it is a record in the log."""

    policy: str = "hierarchical"
    parameters: dict[str, Any] = {}  # for the policy's constructor, besides the kind of context
    dimensions: Annotated[int, Meta(ge=2, le=1024)] = 32  # of the vectors that features are hashed into
    exploration: Share = 0.02  # the share of decisions with a uniform choice; 0 always shows the best
    # How the other decisions are made. policy: by the policy's own probabilities; epsilon: the best is shown.
    explore: Literal["policy", "epsilon"] = "policy"
    wait: Annotated[float, Meta(ge=0.001, le=2_592_000)] = 600.0  # seconds until a reward must have come
    default_reward: Payoff = 0.0  # learned if none came in time
    aggregation: Aggregation = "earliest"
    mode: Mode = "online"
    # Memory for events. Beyond it, the oldest leave memory; they are read from the log when their reward comes or
    # their wait ends. A wait takes 32 bytes; only if all waits together take more than this, the oldest ends early.
    max_event_bytes: Count = 268_435_456
    max_users: Count = 1_000_000  # beyond it, the user unseen for longest is dropped, from the model too
    max_items: Count = 100_000  # ids without features; a rank that names one more is refused
    record_reasons: bool = True  # log scores, widths and neighbours of each decision
    # Left out of records where they are not set, so that older logs keep their bytes.
    holdback: Share | UnsetType = UNSET  # the share of users who are shown the baseline
    challenger: Challenger | UnsetType = UNSET
    # The smallest relative difference of arms that matters; 0.05 unless it is set.
    smallest_lift: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    caps: Annotated[tuple[Cap, ...], Meta(max_length=1000)] | UnsetType = UNSET
    budget: Budget | UnsetType = UNSET
    # What the named parts of a reward are worth together, if it has no value: the sum of weight times part.
    payoff: Annotated[dict[PartName, PartValue], Meta(max_length=64)] | UnsetType = UNSET
    guardrails: Annotated[tuple[Guardrail, ...], Meta(max_length=16)] | UnsetType = UNSET
    # First letters of objects of features, {"device": {…}}, that decisions leave out: --ignore of Vowpal Wabbit.
    ignored: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    max_events: Count | UnsetType = UNSET  # has no effect; logs of earlier versions have it


class Durability(StrEnum):
    """What a crash may cost. Both survive kill −9 without loss; the name says what a power cut may lose."""

    LOSE_NOTHING = "lose-nothing"  # answered after the sync
    LOSE_ONE_SECOND = "lose-one-second"  # answered after the write, synced every second


class Settings(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """How one process runs."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    workers: Annotated[int, Meta(ge=1, le=64)] = 1  # processes that share the port and the store
    store: str = "coterie.db"  # a file for SQLite, or postgresql://…
    durability: Durability = Durability.LOSE_NOTHING
    engine: str | None = None  # where users' models over features are kept if not here: cuda
    snapshot_every: Count = 100_000  # records
    retention_days: Annotated[float, Meta(ge=-1)] = -1  # −1 keeps records for as long as there is room
    max_log_bytes: Annotated[int, Meta(ge=0, le=2**53)] = 50_000_000_000  # then the oldest go; 0 is no limit
    user_path: str = "user.id"  # where Personalizer's API finds the user in the context features
    max_body: Count = 1_000_000  # bytes
    max_model: Annotated[int, Meta(ge=1, le=900_000_000)] = 500_000_000  # bytes of a model that is imported
    max_headers: Annotated[int, Meta(ge=1_024)] = 16_384  # bytes, with the address
    max_actions: Annotated[int, Meta(ge=1, le=10_000)] = 50
    max_features: Count = 2_000  # per request, after flattening
    max_queue: Count = 10_000  # requests waiting for their turn or for the disk; more are answered 503
    max_connections: Count = 1_000  # open at once; for another one, one that waits is closed
    max_per_address: Count = 500  # connections of one address that have sent no request with a key yet
    headers_within: Annotated[float, Meta(gt=0)] = 10.0  # seconds for sending the headers of a request
    body_within: Annotated[float, Meta(gt=0)] = 30.0  # seconds for sending a body, or for reading an answer
    rate: Annotated[float, Meta(ge=0)] = 0.0  # requests per second and client; 0 is no limit
    stop_within: Annotated[float, Meta(gt=0)] = 30.0  # seconds for a graceful stop
    max_evaluations: Count = 100  # kept; more are refused until one is deleted
    max_evaluated: Count = 100_000  # decisions that one evaluation uses: the newest
    max_evaluated_bytes: Count = 500_000_000  # about the memory for these decisions; the newest that fit
    evaluation_within: Annotated[float, Meta(gt=0)] = 3_600.0  # seconds for one evaluation
    optimise_days: Annotated[float, Meta(ge=0)] = 0.0  # days between two automatic optimisations; 0 is never
    origins: list[str] = []  # of pages that may call with a key, such as "https://shop.example"
    tls_certificate: str | None = None
    tls_key: str | None = None
    telemetry: str | None = None  # where spans go, such as http://127.0.0.1:4318; OTEL_* variables work too
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = False  # one line per request
    keys: dict[str, str] = {}  # "name:scope+scope" → SHA-256 of the key, as `coterie keys new --toml` prints
    config: Config = Config()
    given: frozenset[str] | None = None  # the names of the settings that were given; None is all of them

    def names(self, field: str) -> bool:
        """Return whether a field, such as `port` or `config.wait`, was given for this start."""
        return self.given is None or field in self.given


def starting_config(settings: Settings, stored: Config) -> Config:
    """Return the rules of a start: what its settings name, and for the rest what was in force before.

    If a policy is named, its parameters are taken from the settings too. Parameters alone are for the stored policy.
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
    """Return settings from a TOML file, then `COTERIE_*` variables, then flags that are not None.

    A flag's name may be that of a setting in a table, such as `config.wait` or `config.parameters.slots`.
    """
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
    for name, value in flags.items():
        if value is not None:
            _put(values, name, value)
    if isinstance(values.get("origins"), str):  # in the environment, or name=value
        values["origins"] = values["origins"].replace(",", " ").split()
    if "given" in values:
        raise ParameterError("the settings cannot be used: Object contains unknown field `given`")
    if policy is not None:
        values["config"] = {**values.get("config", {}), "policy": policy}
    named = {name.replace("-", "_") for name in values}
    if isinstance(values.get("config"), dict):
        named |= {f"config.{name.replace('-', '_')}" for name in values["config"]}
    try:
        # strict=False, because numbers in the environment are text.
        return msgspec.convert({**values, "given": named}, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ParameterError(f"the settings cannot be used: {error}") from error


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    """Put a value where its name says; what a table has otherwise stays."""
    *tables, last = name.split(".")
    names = [
        part if "parameters" in tables[:k] else part.replace("_", "-")
        for k, part in enumerate([*tables, last])
    ]
    for k, table in enumerate(names[:-1]):
        inside = values.get(table, {})
        if not isinstance(inside, dict):
            whole = ".".join(names[: k + 1])
            raise ParameterError(
                f"the settings cannot be used: {name} is set, but {whole} is {inside!r}, not a table"
            )
        values[table] = dict(inside)
        values = values[table]
    values[names[-1]] = value
