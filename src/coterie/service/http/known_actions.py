"""Actions that are sent again and again are read once.

Most requests name the same actions with the same features. A body is decoded with its actions left as bytes; if all
of them came at least twice before, the actions that were made of these bytes are used again. Otherwise, and whenever
anything is wrong, the answer is None, and the body is decoded as a whole, which also finds the place of a mistake.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

from coterie.errors import ContextError
from coterie.models.features import check_readable
from coterie.service.core.encoding import KnownFeatures
from coterie.service.http.duplicate_names import check_names
from coterie.service.http.limits import LONG, check_numbers

T = TypeVar("T")

LARGEST = 4096  # bytes of an action that is kept
ROOM = 2_000_000  # bytes of all actions that are kept; then they are forgotten
SEEN = 65_536  # actions that came once


class KnownActions(Generic[T]):
    """Decodes bodies of one kind: a struct whose field `actions` is a list of structs with `id` and `features`."""

    def __init__(self, kind: type[T], action: type[Any], limits: Sequence[Any]) -> None:
        hints = get_type_hints(kind, include_extras=True)
        hints["actions"] = Annotated[list[msgspec.Raw], *limits]
        struct: Any = kind
        fields, config = msgspec.structs.fields(struct), struct.__struct_config__
        self._kind = kind
        self._names = [field.name for field in fields]
        outer = msgspec.defstruct(
            kind.__name__,
            [(field.name, hints[field.name], _field(field)) for field in fields],
            forbid_unknown_fields=config.forbid_unknown_fields,
            omit_defaults=config.omit_defaults,
            kw_only=True,
        )
        self._outer: msgspec.json.Decoder[Any] = msgspec.json.Decoder(outer)
        self._action: msgspec.json.Decoder[Any] = msgspec.json.Decoder(action)
        self._known: dict[bytes, Any] = {}
        self._room = ROOM
        self._seen: set[int] = set()  # hashes of what came once

    def decode(self, body: bytes) -> T | None:
        """Return a body whose actions are all known, or None."""
        try:
            found: Any = self._outer.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        sent = [bytes(raw) for raw in found.actions]
        actions = [*map(self._known.get, sent)]
        if None in actions:
            for one in sent:
                self._meet(one)
            return None
        try:
            check_names(body, found)
            if len(body) - sum(map(len, sent)) >= len(LONG):
                check_numbers(body)
        except ValueError:
            return None
        found.actions = actions
        return self._kind(*[getattr(found, name) for name in self._names])

    def _meet(self, sent: bytes) -> None:
        """Note that an action came; the second time it is read and kept."""
        number = hash(sent)
        if number not in self._seen:
            if len(self._seen) >= SEEN:
                self._seen.clear()
            self._seen.add(number)
        elif sent not in self._known and len(sent) <= LARGEST:
            try:
                action = self._read(sent)
            except (msgspec.MsgspecError, ValueError, RecursionError, ContextError):
                return
            self._room -= len(sent)
            if self._room < 0:
                self._known.clear()
                self._room = ROOM - len(sent)
            self._known[sent] = action

    def _read(self, sent: bytes) -> Any:
        action = self._action.decode(sent)
        check_names(sent, action)
        check_numbers(sent)
        if action.features is None:
            return action
        check_readable([action.features])
        return msgspec.structs.replace(action, features=KnownFeatures(action.features))


def _field(info: msgspec.structs.FieldInfo) -> Any:
    """Return a field with the default and the name in JSON of another one."""
    made: Any = msgspec.field
    return made(default=info.default, default_factory=info.default_factory, name=info.encode_name)


def known_actions(kind: type[T]) -> KnownActions[T] | None:
    """Return what decodes bodies of a kind, if it is a struct with a list of actions that are structs."""
    if "actions" not in getattr(kind, "__struct_fields__", ()):
        return None
    inside, *limits = get_args(get_type_hints(kind, include_extras=True)["actions"]) or (None,)
    (action,) = get_args(inside) or (None,)
    return KnownActions(kind, action, limits) if hasattr(action, "__struct_fields__") else None
