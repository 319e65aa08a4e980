"""Who is in which arm: a user's arm is drawn from the user's id, so it is the same at every visit.

By user and not by event, because what a user was shown before changes what the user does next, and what the model
knows of the user: if one user were in both arms, each arm would earn a part of what the other did. Requests that
name no user cannot be told apart, so they are drawn one by one, by their event ids.

Given the user's arm, the probabilities in the log are those by which the choice was made: 1 for the baseline in the
holdback. They are not mixed with the shares, because from the second visit on the arm of a user is no longer chance.
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
    """Where a decision belongs."""

    name: Name = ""
    alone: bool = False  # drawn by the event, because the request names no user


OUTSIDE = Arm()


def assign(config: Config, user: str, event: str) -> Arm:
    """Return the arm of a decision. Users stay where they are when a share grows, but for those who move into it."""
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
    """Return the rules with the challenger's model in place of the champion's, if there is a challenger."""
    other = config.challenger
    if other is UNSET or not other.share:
        return None
    return alone(msgspec.structs.replace(config, policy=other.policy, parameters=other.parameters))


def alone(config: Config) -> Config:
    """Return the rules without a trial."""
    return msgspec.structs.replace(config, holdback=UNSET, challenger=UNSET)


def normal(holdback: float, challenger: object) -> dict[str, object]:
    """Return both as settings have them: what is nothing is not set."""
    nobody = challenger is None or not getattr(challenger, "share", 0)
    unset: UnsetType = UNSET
    return {"holdback": holdback or unset, "challenger": unset if nobody else challenger}


def check_shares(config: Config) -> None:
    """Raise if nobody is left for the champion's arm, or less than nobody."""
    held, given = shares(config)
    if held + given > 1:
        raise ParameterError(
            f"holdback is {held:g} and the challenger's share {given:g}, expected at most 1 together"
        )


def _uniform(name: str) -> float:
    """Return a number in [0, 1) that depends on a name only, and not as the choice of an event does."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=b"coterie-arm").digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
