"""Ids: any text without control characters. Those of users and events are in paths, percent-encoded.

An id may have slashes, so a path is split before it is decoded: `encoded_path` leaves the ids encoded for the
routes, and `decode_id` decodes the one that a route was given.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote, unquote

from litestar.params import Parameter
from msgspec import Meta

from coterie.data.logs.records import request_of
from coterie.service.problems import Problem

# Neither "." nor "..": clients and proxies drop them from addresses, encoded or not. (`$` alone would accept "a\n".)
ID = r"^(?!\.{1,2}$)[^\x00-\x1f\x7f-\x9f]+$(?!\n)"
LONGEST = 256
RULE = f"expected 1 to {LONGEST} characters, no control characters, and neither '.' nor '..', which URLs drop"

# Ids of actions and slots are in no path.
NAME = r"^[^\x00-\x1f\x7f-\x9f]+$(?!\n)"
NAME_RULE = f"expected 1 to {LONGEST} characters, no control characters"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Id = Annotated[str, Meta(min_length=1, max_length=LONGEST, pattern=ID)]
Name = Annotated[str, Meta(min_length=1, max_length=LONGEST, pattern=NAME)]
# The same in the API's schema; `check_action_ids` checks the ids of all actions of a request in one search.
ActionName = Annotated[str, Meta(min_length=1, max_length=LONGEST, extra_json_schema={"pattern": NAME})]
PathId = Annotated[str, Parameter(min_length=1, description="Percent-encoded; any character may be in it.")]

_PLAIN = "!$&'()*+,;=:@"  # allowed in a segment of a path, besides letters, digits and -._~


def readable(error: Exception) -> str:
    """Return the message of a body's error, with the rule of an id in the place of its pattern."""
    said = str(error).replace(f"Expected `str` matching regex {ID!r}", f"not an id: {RULE}")
    return said.replace(f"Expected `str` matching regex {NAME!r}", f"not an id: {NAME_RULE}")


def check_action_ids(actions: Sequence[Any]) -> None:
    """Raise if an action's id has control characters."""
    if _CONTROL.search("".join([action.id for action in actions])):
        name = next(action.id for action in actions if _CONTROL.search(action.id))
        raise Problem(400, "invalid_request", f"the action's id {name[:80]!r} is not an id: {NAME_RULE}")


def is_id(text: str) -> bool:
    """Return whether a text can be the id of a user or an event."""
    return len(text) <= LONGEST and re.search(ID, text) is not None


def encoded_path(scope: Any) -> str:
    """Return the path of a request, each segment percent-encoded in the same way."""
    raw = scope.get("raw_path")
    if raw is None:
        return quote(scope["path"], safe="/" + _PLAIN)
    path = raw.partition(b"?")[0].decode("latin-1")
    if "//" in path:
        path = re.sub("/{2,}", "/", path)  # https://host/ + /v1/rank
    if "%" not in path:
        return str(path)
    parts = [unquote(part, errors="surrogateescape") for part in path.split("/")]
    return "/".join(quote(part, _PLAIN, errors="surrogateescape") for part in parts)


def decode_id(segment: str) -> str:
    """Return the id in a segment of a path; it may be that of an event's slot."""
    try:
        text = unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        message = f"the id {segment[:80]!r} in the path is not UTF-8: {error}"
        raise Problem(400, "invalid_id", message) from error
    if not is_id(request_of(text)):
        raise Problem(400, "invalid_id", f"the id in the path is {text[:80]!r}, {RULE}")
    return text
