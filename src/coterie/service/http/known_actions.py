"""Actions, lists of them and contexts that are sent again and again are read once.

Most requests name the same actions with the same features. A body is decoded with its actions and its context left as
bytes; if all actions came at least twice before, the actions that were made of these bytes are used again. Otherwise,
and whenever anything is wrong, the answer is None, and the body is decoded as a whole, which also finds the place of
a mistake. A whole list is kept from its second time on, and a context from the first.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

from coterie.errors import ContextError
from coterie.models.features import check_readable
from coterie.service.core.encoding import KnownActions, KnownFeatures
from coterie.service.http.duplicate_names import check_names
from coterie.service.http.limits import LONG, check_numbers
from coterie.service.ids import check_action_ids
from coterie.service.problems import Problem

T = TypeVar("T")

LARGEST = 4096  # bytes of an action that is kept
ROOM = 2_000_000  # bytes of all actions that are kept; then they are forgotten
SEEN = 65_536  # actions that came once


class ShortWay(Generic[T]):
    """Decodes bodies of one kind: a struct whose field `actions` is a list of structs with `id` and `features`."""

    def __init__(self, kind: type[T], action: type[Any], limits: Sequence[Any]) -> None:
        hints = get_type_hints(kind, include_extras=True)
        self._list: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Annotated[list[msgspec.Raw], *limits])
        hints["actions"] = msgspec.Raw
        self._has_context = "context" in hints
        if self._has_context:
            self._context: msgspec.json.Decoder[Any] = msgspec.json.Decoder(hints["context"])
            hints["context"] = msgspec.Raw
        struct: Any = kind
        fields, config = msgspec.structs.fields(struct), struct.__struct_config__
        self._kind = kind
        self._names = [field.name for field in fields]
        outer = msgspec.defstruct(
            kind.__name__,
            [(field.name, hints[field.name], _field(field, hints[field.name])) for field in fields],
            forbid_unknown_fields=config.forbid_unknown_fields,
            omit_defaults=config.omit_defaults,
            kw_only=True,
        )
        self._outer: msgspec.json.Decoder[Any] = msgspec.json.Decoder(outer)
        self._action: msgspec.json.Decoder[Any] = msgspec.json.Decoder(action)
        self._known: dict[bytes, Any] = {}  # actions
        self._contexts: dict[bytes, KnownFeatures] = {}
        self._lists: dict[bytes, KnownActions] = {}
        self._room = self._context_room = self._list_room = ROOM
        self._seen: set[int] = set()  # hashes of what came once

    def decode(self, body: bytes) -> T | None:
        """Return a body whose actions are all known, or None."""
        try:
            found: Any = self._outer.decode(body)
            sent = bytes(found.actions)
            actions = self._lists.get(sent)
            if actions is None:
                actions = self._read_list(sent)
                if actions is None:
                    return None
            check_names(body, found)
            if len(body) - len(sent) >= len(LONG):
                check_numbers(body)
            if self._has_context:
                found.context = self._read_context(found.context)
        except (msgspec.MsgspecError, ValueError, RecursionError, ContextError):
            return None
        found.actions = actions
        return self._kind(*[getattr(found, name) for name in self._names])

    def _read_list(self, sent: bytes) -> Any:
        """Return the actions of a list, if all are known. A list that came before is kept."""
        each = [*map(bytes, self._list.decode(sent))]
        actions = [*map(self._known.get, each)]
        if None in actions:
            for one in each:
                self._meet(one)
            return None
        if not self._is_new(sent) and len(sent) <= LARGEST * 16 and _ids_differ(actions):
            known = KnownActions(actions)
            self._list_room -= len(sent)
            if self._list_room < 0:
                self._lists.clear()
                self._list_room = ROOM - len(sent)
            self._lists[sent] = known
            return known
        return actions

    def _is_new(self, sent: bytes) -> bool:
        """Return whether something comes for the first time, as far as is known."""
        number = hash(sent)
        if number in self._seen:
            return False
        if len(self._seen) >= SEEN:
            self._seen.clear()
        self._seen.add(number)
        return True

    def _read_context(self, raw: Any) -> Any:
        sent = bytes(raw)
        known = self._contexts.get(sent)
        if known is not None:
            return known
        if sent == b"[]":
            return []
        features = self._context.decode(sent)
        check_names(sent, features)
        check_readable([features])
        known = KnownFeatures(features)
        if len(sent) <= LARGEST:
            self._context_room -= len(sent)
            if self._context_room < 0:
                self._contexts.clear()
                self._context_room = ROOM - len(sent)
            self._contexts[sent] = known
        return known

    def _meet(self, sent: bytes) -> None:
        """Note that an action came; the second time it is read and kept."""
        if not self._is_new(sent) and sent not in self._known and len(sent) <= LARGEST:
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


def _ids_differ(actions: Sequence[Any]) -> bool:
    """Return whether a list passes the checks of ids."""
    try:
        check_action_ids(actions)
    except Problem:
        return False
    return len({action.id for action in actions}) == len(actions)


def _field(info: msgspec.structs.FieldInfo, hint: Any) -> Any:
    """Return a field with the default and the name in JSON of another one."""
    made: Any = msgspec.field
    if hint is msgspec.Raw and info.name == "context":
        return made(default=msgspec.Raw(b"[]"), name=info.encode_name)
    return made(default=info.default, default_factory=info.default_factory, name=info.encode_name)


def short_way(kind: type[T]) -> ShortWay[T] | None:
    """Return what decodes bodies of a kind, if it is a struct with a list of actions that are structs."""
    if "actions" not in getattr(kind, "__struct_fields__", ()):
        return None
    inside, *limits = get_args(get_type_hints(kind, include_extras=True)["actions"]) or (None,)
    (action,) = get_args(inside) or (None,)
    return ShortWay(kind, action, limits) if hasattr(action, "__struct_fields__") else None
