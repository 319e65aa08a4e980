"""The rules of a service's loop, as its log has them."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from coterie.arrays import JsonObject

Share = Annotated[float, Meta(ge=0, le=1)]
Payoff = Annotated[float, Meta(ge=-1, le=1)]
Count = Annotated[int, Meta(ge=1, le=2**53)]  # integers that a JSON number represents exactly
Mode = Literal["online", "apprentice", "logging-only"]
Aggregation = Literal["earliest", "sum", "average"]


class Challenger(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Another policy that decides for a share of the users, to be compared with the configured one."""

    policy: str
    share: Share
    parameters: JsonObject = {}


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
    parameters: JsonObject = {}  # for the policy's constructor, besides the kind of context
    dimensions: Annotated[int, Meta(ge=2, le=1024)] = 32  # of the vectors that features are hashed into
    exploration: Share = 0.01  # the share of decisions with a uniform choice; 0 always shows the best
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
    holdback: Share = 0.0  # the share of users who are shown the baseline
    challenger: Challenger | None = None
    smallest_lift: Annotated[float, Meta(gt=0, le=1)] = (
        0.05  # the smallest relative difference of arms that matters
    )
    caps: Annotated[tuple[Cap, ...], Meta(max_length=1000)] = ()
    budget: Budget | None = None
    # What the named parts of a reward are worth together, if it has no value: the sum of weight times part.
    payoff: Annotated[dict[PartName, PartValue], Meta(max_length=64)] = {}
    guardrails: Annotated[tuple[Guardrail, ...], Meta(max_length=16)] = ()
    # First letters of objects of features, {"device": {…}}, that decisions leave out: --ignore of Vowpal Wabbit.
    ignored: Annotated[str, Meta(max_length=64)] = ""
