"""Refuses JSON objects with the same name twice: parsers differ in which value they keep.

A decoder keeps the last value. To find out cheaply, the decoded value is encoded again and colons are compared: each
pair of an object has one colon outside of strings, and strings keep theirs, if escaped colons are counted too. So the
counts differ exactly if a name occurred twice. It takes a few microseconds.
"""

import json
from typing import Any

import msgspec

NAMED = 65_536  # bytes; up to this size a body is parsed once more, slowly, to find the name

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def check_names(body: bytes, found: Any = None) -> None:
    """Raise if a name occurs twice in one object of a body that could be decoded.

    `found` is the decoded body. If its structs omit defaults, encoding it is a cheaper check.

    >>> check_names(b'{"value": 1, "value": 0}')
    Traceback (most recent call last):
    ValueError: the name 'value' occurs twice in one object
    """
    there = colons(body)
    # A default value that was sent is not encoded again; then the body is decoded once more.
    if found is not None and _encode(found).count(b":") == there:
        return
    if _encode(_decode(body)).count(b":") != there:
        if len(body) <= NAMED:
            json.loads(body, object_pairs_hook=_pairs, parse_int=str, parse_float=str)
        raise ValueError("a name occurs twice in one object")


def colons(body: bytes) -> int:
    """Return how many colons there are, including escaped ones: `\\\\u003a` without another backslash before it."""
    found = body.count(b":")
    if b"\\u003" in body:
        found += body.replace(b"\\\\", b"").lower().count(b"\\u003a")
    return found


def _pairs(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len({*names}) != len(names):
        name = next(name for k, name in enumerate(names) if name in names[:k])
        raise ValueError(f"the name {name[:80]!r} occurs twice in one object")
