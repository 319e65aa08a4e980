"""Ids: any text without control characters. Ids of users and events appear in paths, percent-encoded.

An id may contain slashes, so a path is split before it is decoded: `in_order` leaves the ids encoded for the routes,
and `named` decodes the id that a route receives.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote, unquote

from litestar.params import Parameter
from msgspec import Meta

from coterie.service.problems import Problem

# Not "." or "..": clients and proxies remove them from addresses. (`$` alone would accept "a\n".)
ID = r"^(?!\.{1,2}$)[^\x00-\x1f\x7f-\x9f]+$(?!\n)"
LONGEST = 256
RULE = f"expected 1 to {LONGEST} characters, no control characters, and neither '.' nor '..', which addresses swallow"

# Ids of actions and slots are never in a path.
NAME = r"^[^\x00-\x1f\x7f-\x9f]+$(?!\n)"
NAME_RULE = f"expected 1 to {LONGEST} characters, no control characters"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

SLOT = "\x1f"  # between an event's id and a slot's number; clients cannot send it

Id = Annotated[str, Meta(min_length=1, max_length=LONGEST, pattern=ID)]
Name = Annotated[str, Meta(min_length=1, max_length=LONGEST, pattern=NAME)]
# The same in the schema only: `check_names_of` checks the ids of all actions at once.
ActionName = Annotated[str, Meta(min_length=1, max_length=LONGEST, extra_json_schema={"pattern": NAME})]
PathId = Annotated[str, Parameter(min_length=1, description="Percent-encoded; any character may be in it.")]

_PLAIN = "!$&'()*+,;=:@"  # allowed in a segment of a path besides letters, digits and -._~


def in_words(error: Exception) -> str:
    """Return the error of a body, with the rule for ids instead of their pattern."""
    said = str(error).replace(f"Expected `str` matching regex {ID!r}", f"not an id: {RULE}")
    return said.replace(f"Expected `str` matching regex {NAME!r}", f"not an id: {NAME_RULE}")


def check_names_of(actions: Sequence[Any]) -> None:
    """Raise if an action's id has control characters."""
    if _CONTROL.search("".join([action.id for action in actions])):
        name = next(action.id for action in actions if _CONTROL.search(action.id))
        raise Problem(400, "invalid_request", f"the action's id {name[:80]!r} is not an id: {NAME_RULE}")


def is_id(text: str) -> bool:
    """Return whether a text is a valid id of a user or an event."""
    return len(text) <= LONGEST and re.search(ID, text) is not None


def in_order(scope: Any) -> str:
    """Return the path of a request with its segments percent-encoded in one way."""
    raw = scope.get("raw_path")
    if raw is None:
        return quote(scope["path"], safe="/" + _PLAIN)
    path = raw.partition(b"?")[0].decode("latin-1")
    if "%" not in path:
        return str(path)
    return "/".join(
        quote(unquote(part, errors="surrogateescape"), _PLAIN, errors="surrogateescape")
        for part in path.split("/")
    )


def named(segment: str) -> str:
    """Return the id in a segment of a path; it may be that of an event's slot."""
    try:
        text = unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise Problem(
            400, "invalid_id", f"the id {segment[:80]!r} in the path is not UTF-8: {error}"
        ) from error
    if not is_id(text.partition(SLOT)[0]):
        raise Problem(400, "invalid_id", f"the id in the path is {text[:80]!r}, {RULE}")
    return text
