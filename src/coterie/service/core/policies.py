"""The policies in force, and what a payoff teaches them."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast, final

from safetensors.numpy import load

from coterie.data.logs.records import Import, Kind, Rank, ShownAction
from coterie.data.logs.rules import Config
from coterie.errors import CoterieError, FileError
from coterie.models.files import Tensors, unpack_ids
from coterie.policies import Hierarchical, Policy
from coterie.policies.cab import Engine
from coterie.service.core.policy_config import make_policy, takes_friends, takes_ids, takes_names
from coterie.service.problems import Problem


@final
class Policies:
    """At most one policy for each kind of context, made on first use."""

    def __init__(self, config: Config, engine: Engine | None = None) -> None:
        self.config = config
        self.engine = engine  # where users' models are kept, if not in this process
        self.made: dict[Kind, Policy] = {}  # by kind of context
        self.known_items: dict[str, None] = {}  # ids of actions without features

    @property
    def learned(self) -> int:
        """How many payoffs were learned."""
        return sum(policy.learned for policy in self.made.values())

    def of(self, kind: Kind) -> Policy:
        """Return the policy for a kind of context."""
        if kind not in self.made:
            self.made[kind] = make_policy(self.config, kind, self.engine)
        return self.made[kind]

    def clear(self) -> None:
        """Forget all that was learned."""
        self.made, self.known_items = {}, {}

    def restore(self, record: Import) -> None:
        """Use the policies that a record holds; raises FileError, and changes nothing, if it cannot be used."""
        made: dict[Kind, Policy] = {}
        for kind, (learned, tensors) in record.models.items():
            made[kind] = policy = make_policy(self.config, kind, self.engine)
            policy.learned = learned
            restore_policy(policy, load(tensors))
        found = made["items"].tensors() if "items" in made else {}
        self.made = made
        self.known_items = dict.fromkeys(map(str, unpack_ids(found, "items") if "items" in found else ()))

    def drop(self, user: int) -> None:
        """Drop a user from all policies."""
        for policy in self.made.values():
            with suppress(LookupError):  # the policy never learned from this user
                policy.drop(user)

    def befriend(self, user: int, friends: Mapping[int, float]) -> None:
        """Give a user these friends, if the policy uses friends."""
        if takes_friends(self.config):
            cast(Hierarchical, self.of("model")).set_friends(user, friends)

    def friends_of(self, user: int) -> dict[int, float]:
        """Return the friends of a user, as far as the policy uses friends, with the weights of the edges."""
        if not takes_friends(self.config) or "model" not in self.made:
            return {}
        return cast(dict[int, float], cast(Hierarchical, self.made["model"]).friends_of(user))

    def check_items(self, ids: Collection[str]) -> None:
        """Raise if there would be more than `max_items`; each id is given once.

        No item is dropped to make room: users share what they learned of it, so no model can forget one item.
        """
        known = self.known_items
        if all(map(known.__contains__, ids)):
            return
        new, most = sum(name not in known for name in ids), self.config.max_items
        if len(known) + new > most:
            message = f"the request names {new} new items, but {len(known)} of at most {most} are known"
            way_out = "raise max-items, empty the model, or give actions features, which need no row per item"
            raise Problem(422, "too_many_items", f"{message}; {way_out}")

    def check_shown(self, actions: Iterable[ShownAction]) -> None:
        """Raise if learning payoffs of these actions would need too many items."""
        self.check_items({one.id for one in actions if self.kind_of(one.featured) == "items"})

    def kind_of(self, featured: bool) -> Kind:
        """Return the kind of context that actions are for the policy; `featured` says if one of them has features."""
        if takes_names(self.config):
            return "model"
        return "vectors" if featured or not takes_ids(self.config.policy) else "items"

    def read(self, action: ShownAction) -> tuple[Kind, Any]:
        """Return an action as the policy learns it, also if another policy decided."""
        kind = self.kind_of(action.featured)
        if kind == "items":
            return kind, action.id
        encoded = action.encoded()
        return kind, encoded if kind == "model" else encoded.vectors(self.config.dimensions)[0]

    def meet(self, record: Rank) -> None:
        """Know the ids of a decision's actions, if they are read by their ids."""
        known = self.known_items
        if self.kind_of(record.featured) == "items" and not all(map(known.__contains__, record.actions)):
            for k in record.open_to:
                known.setdefault(record.actions[k])

    def learn(self, user: int, action: ShownAction, value: float) -> int:
        """Learn a payoff, and return how many users' models changed."""
        kind, context = self.read(action)
        if kind == "items":
            self.known_items.setdefault(action.id)
        return self.of(kind).learn(user, context, value)


def restore_policy(policy: Policy, tensors: Tensors) -> None:
    """Restore a policy from the arrays of a file; raises FileError if it cannot be used."""
    try:
        policy.restore(tensors)
    except CoterieError:
        raise
    except Exception as error:  # the arrays may have any shape, and policies trust what they saved
        raise FileError(f"the model file is damaged: {error}") from error
