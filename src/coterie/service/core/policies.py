"""The policies in force, and what a payoff teaches them."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import cast, final

import numpy as np
from safetensors.numpy import load

from coterie.errors import CoterieError, FileError
from coterie.models.encoded import Encoded
from coterie.models.features import cross, hash_actions
from coterie.models.files import Tensors, unpack_ids
from coterie.policies import Hierarchical, Policy
from coterie.policies.cab import Engine
from coterie.service.core.encoding import encode_action
from coterie.service.core.events import Paid
from coterie.service.core.policy_config import KINDS, Kind, make_policy, takes_friends, takes_ids, takes_names
from coterie.service.core.question import sent_features
from coterie.service.core.records import Import, Rank
from coterie.service.problems import Problem
from coterie.service.settings import Config


@final
class Policies:
    """At most one policy for each kind of context, made on first use."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine  # where users' models are kept, if not in this process
        self.items: Policy | None = None  # over ids of actions without features
        self.vectors: Policy | None = None  # over hashed features
        self.model: Policy | None = None  # or one for ids, features, contexts and users together
        self.known_items: dict[str, None] = {}
        # Called with each payoff that is learned: user, what it is for, and value.
        self.on_learn: Callable[[int, Paid, float], None] | None = None

    def made(self) -> dict[Kind, Policy]:
        """Return the policies that were made so far."""
        every = {kind: getattr(self, kind) for kind in KINDS}
        return {kind: policy for kind, policy in every.items() if policy is not None}

    @property
    def learned(self) -> int:
        """How many payoffs were learned."""
        return sum(policy.learned for policy in self.made().values())

    def of(self, kind: Kind, config: Config) -> Policy:
        """Return the policy for a kind of context."""
        policy: Policy | None = getattr(self, kind)
        if policy is None:
            policy = make_policy(config, kind, self.engine)
            setattr(self, kind, policy)
        return policy

    def clear(self) -> None:
        """Drop all policies."""
        self.items = self.vectors = self.model = None

    def take(self, other: "Policies") -> None:
        """Use the policies of another, which learned the same log."""
        self.items, self.vectors, self.model = other.items, other.vectors, other.model
        self.known_items = other.known_items

    def restore(self, record: Import, config: Config) -> None:
        """Use the policies that a record holds; raises FileError, and changes nothing, if it cannot be used."""
        made: dict[Kind, Policy] = {}
        for kind in KINDS:
            saved = getattr(record, kind)
            if saved is not None:
                made[kind] = policy = make_policy(config, kind, self.engine)
                policy.learned, tensors = saved
                restore_policy(policy, load(tensors))
        self.clear()
        for kind, policy in made.items():
            setattr(self, kind, policy)
        learned = {} if self.items is None else self.items.tensors()
        self.known_items = dict.fromkeys(map(str, unpack_ids(learned, "items") if "items" in learned else ()))

    def drop(self, user: int) -> None:
        """Drop a user from all policies."""
        for policy in self.made().values():
            with suppress(LookupError):  # the policy never learned from this user
                policy.drop(user)

    def befriend(self, user: int, friends: Mapping[int, float], config: Config) -> None:
        """Give a user these friends, if the policy uses friends."""
        if takes_friends(config):
            cast(Hierarchical, self.of("model", config)).set_friends(user, friends)

    def friends_of(self, user: int) -> dict[int, float]:
        """Return the friends of a user, as far as the policy uses friends, with the weights of the edges."""
        found = self.model.friends_of(user) if isinstance(self.model, Hierarchical) else {}
        return cast(dict[int, float], found)

    def check_items(self, ids: Collection[str], most: int) -> None:
        """Raise if there would be more than `most` items; each id is given once.

        No item is dropped to make room: users share what they learned of it, so no model can forget one item.
        """
        known = self.known_items
        if all(map(known.__contains__, ids)):
            return
        new = sum(name not in known for name in ids)
        if len(known) + new > most:
            message = f"the request names {new} new items, but {len(known)} of at most {most} are known"
            way_out = "raise max-items, empty the model, or give actions features, which need no row per item"
            raise Problem(422, "too_many_items", f"{message}; {way_out}")

    def learn(self, user: int, paid: Paid, value: float, config: Config) -> int:
        """Learn a payoff, and return how many users' models changed."""
        if takes_names(config):
            return self._learn_hashed(user, paid, value, config)
        if paid.hashed is not None:
            return 0  # decided by an earlier policy, and there was no log to read it again
        item, x = paid.item, paid.x
        if item is None and x is None:
            return 0  # its features could not be read
        if x is None and item is not None and not takes_ids(config.policy):
            x = bytes(hash_actions([(item, ())], (), config.dimensions)[0].tobytes())
        policy = self.of("items" if x is None else "vectors", config)
        if x is not None and len(x) != 8 * config.dimensions:
            return 0  # its features were scrubbed, so it cannot be hashed into other dimensions
        if self.on_learn is not None:
            self.on_learn(user, paid, value)
        if x is None:
            assert item is not None
            self.known_items.setdefault(item)
            return policy.learn(user, item, value)
        return policy.learn(user, np.frombuffer(x), value)

    def _learn_hashed(self, user: int, paid: Paid, value: float, config: Config) -> int:
        """Learn with one model of both; a vector alone does not tell which features it was made of."""
        hashed = paid.hashed
        if hashed is None:
            if paid.item is None:
                return 0
            hashed = encode_action(paid.item, None, ())
        if self.on_learn is not None:
            self.on_learn(user, Paid(hashed=hashed), value)
        return self.of("model", config).learn(user, Encoded.from_bytes(hashed), value)


def restore_policy(policy: Policy, tensors: Tensors) -> None:
    """Restore a policy from the arrays of a file; raises FileError if it cannot be used."""
    try:
        policy.restore(tensors)
    except CoterieError:
        raise
    except Exception as error:  # the arrays may have any shape, and policies trust what they saved
        raise FileError(f"the model file is damaged: {error}") from error


def paid_for(record: Rank, config: Config) -> Paid:
    """Return what the reward of a decision is for, as the policy in force learns it.

    Another policy, or one with other dimensions, may have made the decision. Then it is read from its hashes, which
    stay when a user is scrubbed from the log; in logs of earlier versions, from its features as they were sent.
    """
    item = record.actions[record.choice]
    if takes_names(config):
        if record.hashed is not None:
            return Paid(hashed=record.hashed)
        context, features = sent_features(record)
        return Paid(hashed=encode_action(item, features[record.choice], context))
    if record.x is None and record.hashed is None:
        return Paid(item)
    if record.x is not None and len(record.x) == 8 * config.dimensions:
        return Paid(x=record.x)
    if record.hashed is not None:
        hashed = Encoded.from_bytes(record.hashed).hashed
        if record.x is None and len(hashed.features) == 1:
            return Paid(item)  # it had no features
        parts = hashed.context, hashed.context_values, hashed.features, hashed.values
        return Paid(x=cross(*parts, config.dimensions).tobytes())
    if record.features is None:
        return Paid(x=record.x)
    context, features = sent_features(record)
    if not any(features):
        return Paid(item)
    action = (item, features[record.choice] or ())
    return Paid(x=bytes(hash_actions([action], context, config.dimensions)[0].tobytes()))
