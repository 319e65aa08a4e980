"""One call at a time: every public method of a policy waits until the previous call has ended.

Kernels release Python's global lock, so two threads could otherwise write to the same arrays. Each policy has
one lock. It is re-entrant: `choose` may call `decide`. Two policies with the same random generator share it
without protection; give each its own.
"""

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any


def take_turns(kind: type) -> None:
    """Wrap the public methods and properties that `kind` itself defines, so that each holds the policy's lock."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, FunctionType):
            setattr(kind, name, _holding_the_lock(member))
        elif isinstance(member, property) and isinstance(member.fget, FunctionType):
            setattr(kind, name, property(_holding_the_lock(member.fget), doc=member.__doc__))


def _holding_the_lock(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return call
