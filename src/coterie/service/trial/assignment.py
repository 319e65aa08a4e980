"""Assigns users to arms: a user's arm is drawn from a hash of the user's id, so it is the same at every visit.

Users are assigned, not events, because what a user was shown before changes what the user does next and what the
model knows of the user: with a user in both arms, each arm would affect what the other earns. Requests without a user
are assigned one by one, by their event ids.

The probabilities in the log are conditional on the user's arm: 1 for the baseline in the holdback. They are not
multiplied by the arms' shares, because from the second visit on a user's arm is not random.
"""

from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from coterie.data.logs.interactions import SHARED
from coterie.errors import ParameterError
from coterie.service.settings import Config

Name = Literal["", "champion", "holdback", "challenger"]  # "" outside of a trial
NAMES: tuple[Name, ...] = ("champion", "holdback", "challenger")


class Arm(NamedTuple):
    """The arm of a decision."""

    name: Name = ""
    alone: bool = False  # drawn by the event's id, because the request has no user


OUTSIDE = Arm()


def assign(config: Config, user: str, event: str) -> Arm:
    """Return the arm of a decision. When a share grows, users move into that arm, and no others move."""
    held, given = shares(config)
    if not held + given or config.mode != "online":
        return OUTSIDE
    alone = user == SHARED
    place = _uniform(event if alone else user)
    if place < held:
        return Arm("holdback", alone)
    return Arm("challenger" if place >= 1 - given else "champion", alone)


def shares(config: Config) -> tuple[float, float]:
    """Return the shares of the holdback and of the challenger."""
    held = 0.0 if config.holdback is UNSET else config.holdback
    given = 0.0 if config.challenger is UNSET else config.challenger.share
    return held, given


def challenger_of(config: Config) -> Config | None:
    """Return the configuration with the challenger's policy; None if there is no challenger."""
    other = config.challenger
    if other is UNSET or not other.share:
        return None
    return alone(msgspec.structs.replace(config, policy=other.policy, parameters=other.parameters))


def alone(config: Config) -> Config:
    """Return the configuration without a trial."""
    return msgspec.structs.replace(config, holdback=UNSET, challenger=UNSET)


def normal(holdback: float, challenger: object) -> dict[str, object]:
    """Return both as settings; a share of 0 is not set."""
    absent = challenger is None or not getattr(challenger, "share", 0)
    unset: UnsetType = UNSET
    return {"holdback": holdback or unset, "challenger": unset if absent else challenger}


def check_shares(config: Config) -> None:
    """Raise if the shares sum to more than 1."""
    held, given = shares(config)
    if held + given > 1:
        raise ParameterError(
            f"holdback is {held:g} and the challenger's share {given:g}, expected at most 1 together"
        )


def _uniform(name: str) -> float:
    """Return a number in [0, 1) that depends only on a name, by another hash than the draws of events."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=b"coterie-arm").digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
