"""What is evaluated, and what came of it: one struct that is kept in the store, and told over HTTP."""

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from coterie.service.settings import Config

Kind = Literal["evaluation", "importance"]
Status = Literal["waiting", "running", "done", "failed", "timeout"]
Source = Literal["logged", "baseline", "uniform", "current", "custom", "search"]
# What every evaluation holds: what was shown, what the application would have shown, and chance.
ALWAYS: tuple[Source, ...] = ("logged", "baseline", "uniform")
NAMES = frozenset((*ALWAYS, "current"))  # that no other policy may have


class Candidate(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A policy to evaluate, by a name of its own."""

    name: str
    policy: str
    parameters: dict[str, Any] = {}
    source: Source = "custom"


class Job(Struct, frozen=True, omit_defaults=True):
    """An evaluation or a look at the features' importance. Times are in milliseconds."""

    id: str
    kind: Kind
    name: str
    start: int
    end: int
    created: int
    policies: tuple[Candidate, ...] = ()
    automatic: bool = False
    status: Status = "waiting"
    error: str | None = None
    result: dict[str, Any] | None = None
    applied: str | None = None  # the policy that was taken over from it
    retained: bool = False  # whether it was automatic, and nothing was better with confidence

    @property
    def key(self) -> tuple[Kind, str]:
        """What tells it from all others."""
        return self.kind, self.id

    @property
    def open(self) -> bool:
        """Whether it is still to be done."""
        return self.status in ("waiting", "running")

    def candidate(self, name: str) -> Candidate | None:
        """Return one of its policies."""
        return next((one for one in self.policies if one.name == name), None)


class Work(Struct, frozen=True):
    """What the worker is told first; the log follows."""

    job: Job
    config: Config
    records: int  # decisions that are evaluated at most
    parent: int  # the process that waits for the result


class Done(Struct, frozen=True):
    """What the worker says at the end."""

    result: dict[str, Any] | None = None
    error: str | None = None


def encode(job: Job) -> bytes:
    """Return a job as it is kept."""
    return msgspec.json.encode(job)


def decode(body: bytes) -> Job:
    """Return a kept job."""
    return msgspec.json.decode(body, type=Job)


def moment(milliseconds: float) -> str:
    """Return a time as ISO 8601 has it."""
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(text: str, field: str) -> int:
    """Return a time that ISO 8601 writes; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError, TypeError) as error:
        message = f"{field} is {str(text)[:80]!r}, expected a time such as '2026-11-01T00:00:00Z'"
        raise ValueError(message) from error
