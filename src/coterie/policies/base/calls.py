"""What happens around each call of a policy: it is checked, and holds the policy's lock.

`user=None` is an anonymous visitor: decided for as an unknown user is, and learned from as from a user who is dropped
at once, so that only what all users share is kept.

One call at a time: every public method waits until the previous call has ended. Kernels release Python's global lock,
so two threads could otherwise write to the same arrays. Each policy has one lock. It is re-entrant: `choose` may call
`decide`. Two policies with the same random generator share it without protection; give each its own.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import wraps
from types import FunctionType
from typing import Any

import numpy as np

from coterie.errors import ContextError, UserError
from coterie.models.actions import ActionLike
from coterie.models.batches import Batch, Outcome
from coterie.models.candidates import Candidates
from coterie.models.checks import check_user
from coterie.policies.base.batch import run_one_by_one

ANONYMOUS = "\0anonymous"  # the name of an anonymous visitor while a payoff is learned


def wrap_methods(kind: type) -> None:
    """Wrap what is public and defined by `kind` itself: all of it holds the lock, and some of it is checked."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, FunctionType):
            if name in INSIDE:
                setattr(kind, f"_bare_{name}", member)
            setattr(kind, name, CHECKED.get(name, _holding_the_lock)(member))
        elif isinstance(member, property) and isinstance(member.fget, FunctionType):
            setattr(kind, name, property(_holding_the_lock(member.fget), doc=member.__doc__))


def has_anonymous(users: Any) -> bool:
    """Return whether an anonymous visitor is among the users of a batch."""
    return not (isinstance(users, np.ndarray) and users.dtype != object) and any(
        user is None for user in users
    )


def _checking_the_user(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, user: Hashable, *rest: Any, **named: Any) -> Any:
        with self._lock:
            check_user(user)
            return method(self, user, *rest, **named)

    return call


def _learning(method: Callable[..., int]) -> Callable[..., int]:
    @wraps(method)
    def call(self: Any, user: Hashable, context: ActionLike, payoff: float) -> int:
        with self._lock:
            check_user(user)
            _check_not_a_position(self._offered, context)
            if user is not None:
                return method(self, user, context, payoff)
            updated = method(self, ANONYMOUS, context, payoff)
            with suppress(UserError):  # not every policy has registered it
                self.drop(ANONYMOUS)
            return updated

    return call


def _adding(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def call(self: Any, user: Hashable) -> None:
        if user is None:
            raise UserError("user is None, an anonymous visitor, of whom nothing is kept; give an id to add")
        with self._lock:
            check_user(user)
            method(self, user)

    return call


def _running(method: Callable[..., Outcome]) -> Callable[..., Outcome]:
    @wraps(method)
    def call(self: Any, batch: Batch) -> Outcome:
        with self._lock:
            return run_one_by_one(self, batch) if has_anonymous(batch.users) else method(self, batch)

    return call


def _check_not_a_position(offered: Any, context: ActionLike) -> None:
    """Raise if `context` is a position in the last list that was offered, whose ids are no numbers."""
    if type(context) is not int or isinstance(offered, np.ndarray):
        return
    names = offered.ids if isinstance(offered, Candidates) else offered
    if 0 <= context < len(names) and not any(isinstance(name, int) for name in names):
        raise ContextError(
            f"context is {context}, the position of {names[context]!r} in the last list; give the action itself, "
            f"such as contexts[{context}]"
        )


def _holding_the_lock(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return call


INSIDE = ("decide", "draw")  # `choose` calls these without their wrappers
CHECKED = {
    **dict.fromkeys(("choose", "decide", "drop", "neighbours"), _checking_the_user),
    "add": _adding,
    "learn": _learning,
    "run": _running,
}
