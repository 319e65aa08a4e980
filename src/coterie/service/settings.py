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
from msgspec import Meta, Struct

from coterie.data.logs.rules import Config, Count
from coterie.errors import ParameterError


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
