"""Jobs: what to evaluate, and the result; stored, and answered over HTTP."""

from datetime import UTC, datetime
from typing import IO, Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from coterie.data.logs.rules import Config

T = TypeVar("T")
JobKind = Literal["evaluation", "importance"]
Status = Literal["waiting", "running", "done", "failed", "timeout"]
Source = Literal["logged", "baseline", "uniform", "current", "custom", "search"]
LATEST = 253_402_300_799_000  # the end of the year 9999, in milliseconds
# Intervals of the time series, in minutes; the longer ones are multiples of the first.
EXPANDING = 5
ROLLING = (60, 360, 720, 1440)
# The policies in every evaluation: what was shown, what the application would have shown, and a uniform choice.
ALWAYS: tuple[Source, ...] = ("logged", "baseline", "uniform")
NAMES = frozenset((*ALWAYS, "current"))  # reserved


class EvaluatedPolicy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A policy to evaluate, and its name in the evaluation."""

    name: str
    policy: str
    parameters: dict[str, Any] = {}
    source: Source = "custom"
    arguments: str = ""  # Vowpal Wabbit's, as sent to Personalizer's interface
    exploration: float | None = None  # None is the configuration's
    ignored: str = ""  # first letters of objects of features, besides the configuration's


class Job(Struct, frozen=True, omit_defaults=True):
    """An evaluation, or a computation of feature importance. Times are in milliseconds."""

    id: str
    kind: JobKind
    name: str
    start: int
    end: int
    created: int
    policies: tuple[EvaluatedPolicy, ...] = ()
    automatic: bool = False
    status: Status = "waiting"
    error: str | None = None
    result: dict[str, Any] | None = None
    applied: str | None = None  # the policy that was applied from it
    retained: bool = False  # whether it was automatic and the current policy stays

    @property
    def key(self) -> tuple[JobKind, str]:
        """Kind and id, which are unique together."""
        return self.kind, self.id

    @property
    def open(self) -> bool:
        """Whether it is not finished."""
        return self.status in ("waiting", "running")

    def policy(self, name: str) -> EvaluatedPolicy | None:
        """Return one of its policies."""
        return next((one for one in self.policies if one.name == name), None)


class WorkerInput(Struct, frozen=True):
    """The first message to the worker; the log follows."""

    job: Job
    config: Config
    records: int  # decisions to evaluate, at most
    size: int  # bytes of memory for them, at most
    parent: int  # the process that waits for the result


class WorkerAnswer(Struct, frozen=True):
    """The worker's answer."""

    result: dict[str, Any] | None = None
    error: str | None = None


def send(file: IO[bytes], message: Struct) -> None:
    """Write a message to the worker."""
    body = msgspec.msgpack.encode(message)
    file.write(len(body).to_bytes(4, "big") + body)


def receive(file: IO[bytes], kind: type[T]) -> T | None:
    """Read a message that `send` wrote; None at the end."""
    size = file.read(4)
    return msgspec.msgpack.decode(file.read(int.from_bytes(size, "big")), type=kind) if size else None


def encode(job: Job) -> bytes:
    """Return a job as it is stored."""
    return msgspec.json.encode(job)


def decode(body: bytes) -> Job:
    """Return a stored job."""
    return msgspec.json.decode(body, type=Job)


def moment(milliseconds: float) -> str:
    """Return a time in ISO 8601."""
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(text: str, field: str) -> int:
    """Return the milliseconds of a time in ISO 8601, from 1970 to 9999; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
        found = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
        return min(max(0, found), LATEST)
    except (ValueError, OverflowError, TypeError) as error:
        message = f"{field} is {str(text)[:80]!r}, expected a time such as '2026-11-01T00:00:00Z'"
        raise ValueError(message) from error
