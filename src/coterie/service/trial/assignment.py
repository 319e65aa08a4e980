"""Assigns users to arms: a user's arm is drawn from a hash of the user's id, so it is the same at every visit.

The hash has a salt, which is drawn anew for each trial: so a user is in the same arm during a trial, and the arms of
two trials are independent. The salt is made from the loop's secret, so nobody outside can choose an id for an arm. It
is part of the record that begins the trial.

Users are assigned, not events, because what a user was shown before changes what the user does next and what the
model knows of the user: with a user in both arms, each arm would affect what the other earns. Requests without a user
are assigned one by one, by their event ids.

The probabilities in the log are conditional on the user's arm: 1 for the baseline in the holdback. They are not
multiplied by the arms' shares, because from the second visit on a user's arm is not random.
"""

from hashlib import blake2b

import msgspec

from coterie.data.logs.interactions import SHARED
from coterie.data.logs.records import ArmName
from coterie.data.logs.rules import Config
from coterie.errors import ParameterError

NAMES: tuple[ArmName, ...] = ("champion", "holdback", "challenger")


def assign(config: Config, user: str, event: str, salt: str = "") -> ArmName:
    """Return the arm of a decision. When a share grows, users move into that arm, and no others move."""
    held, given = shares(config)
    if not held + given or config.mode != "online":
        return ""
    place = _uniform(event if user == SHARED else user, salt)
    if place < held:
        return "holdback"
    return "challenger" if place >= 1 - given else "champion"


def shares(config: Config) -> tuple[float, float]:
    """Return the shares of the holdback and of the challenger."""
    return config.holdback, 0.0 if config.challenger is None else config.challenger.share


def salt_of(old: Config, new: Config, running: str | None, fresh: str) -> str:
    """Return the salt of the trial under new rules: the `fresh` one, if other policies are compared than before.

    If only shares change, it stays, so that no more users move than have to. `running` is the salt of the trial under
    the old rules, or None. Without a trial the salt is empty.
    """
    if not any(shares(new)):
        return ""
    return running if running is not None and policies_of(old) == policies_of(new) else fresh


def compared(config: Config) -> list[object]:
    """Return what a comparison depends on: if any of it changes, the sums start from zero."""
    return [*policies_of(config), config.holdback, config.challenger]


def policies_of(config: Config) -> list[object]:
    """Return the policies that a trial compares."""
    other = None if config.challenger is None else (config.challenger.policy, config.challenger.parameters)
    return [config.policy, config.parameters, config.dimensions, other]


def challenger_of(config: Config) -> Config | None:
    """Return the configuration with the challenger's policy; None if there is no challenger."""
    other = config.challenger
    if other is None or not other.share:
        return None
    return alone(msgspec.structs.replace(config, policy=other.policy, parameters=other.parameters))


def alone(config: Config) -> Config:
    """Return the configuration without a trial and without guardrails."""
    return msgspec.structs.replace(config, holdback=0.0, challenger=None, guardrails=())


def check_shares(config: Config) -> None:
    """Raise if the shares sum to more than 1."""
    held, given = shares(config)
    if held + given > 1:
        raise ParameterError(
            f"holdback is {held:g} and the challenger's share {given:g}, expected at most 1 together"
        )


def _uniform(name: str, salt: str) -> float:
    """Return a number in [0, 1) that depends only on name and salt, by another hash than the draws of events."""
    packed = name.encode("utf-8", "surrogatepass")
    digest = blake2b(packed, digest_size=8, person=b"coterie-arm", key=salt.encode()).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
