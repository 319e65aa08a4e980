"""Names that stand twice in a JSON object: readers differ in which one they believe, so none is believed.

A decoder keeps the last. What it dropped is missing when the value is written again: every pair of an object has one
colon outside of strings, and colons inside of strings are as many as before once escaped ones are counted. So two
numbers differ exactly if a name stood twice, for a few microseconds.
"""

import json
from typing import Any

import msgspec

NAMED = 65_536  # bytes of a body that is read once more, slowly, to say which name it was

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class TwiceError(ValueError):
    """A name stands twice in an object."""


def check_names(body: bytes, found: Any = None) -> None:
    """Raise if a name stands twice in one object of a body that was decoded before.

    `found` is what it was decoded to: where its structs omit defaults, they tell for less.

    >>> check_names(b'{"value": 1, "value": 0}')
    Traceback (most recent call last):
    coterie.service.http.duplicate_names.TwiceError: the name 'value' stands twice in one object
    """
    there = colons(body)
    # A default that was sent all the same is not written again: then, too, the body is read once more.
    if found is not None and _encode(found).count(b":") == there:
        return
    if _encode(_decode(body)).count(b":") != there:
        if len(body) <= NAMED:
            json.loads(body, object_pairs_hook=_pairs, parse_int=str, parse_float=str)
        raise TwiceError("a name stands twice in one object")


def colons(body: bytes) -> int:
    """Return how many colons there are, escaped ones too: `\\\\u003a` behind no other backslash."""
    found = body.count(b":")
    if b"\\u003" in body:
        found += body.replace(b"\\\\", b"").lower().count(b"\\u003a")
    return found


def _pairs(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len({*names}) != len(names):
        name = next(name for k, name in enumerate(names) if name in names[:k])
        raise TwiceError(f"the name {name[:80]!r} stands twice in one object")
