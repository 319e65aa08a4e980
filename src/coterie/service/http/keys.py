"""API keys: 256 random bits, kept as SHA-256, compared in constant time, each with scopes."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Mapping

from coterie.errors import ParameterError
from coterie.service.log.store import KeyRow

SCOPES = ("decide", "read", "admin")
# decide: rank, reward, activate · read: look at everything · admin: forget, configure, reset, and all else
LEAST = 22  # characters: 128 bits in base64


def new_key(name: str, scopes: Iterable[str]) -> tuple[str, KeyRow]:
    """Return a new key, which is shown once, and the row that is stored."""
    key = "ck_" + secrets.token_urlsafe(32)
    return key, KeyRow(check_name(name), check_scopes(scopes), hash_key(key), int(time.time()))


def hash_key(key: str) -> bytes:
    """Return the stored hash of a key. Keys are random, so a plain hash cannot be reversed by search."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def check_name(name: str) -> str:
    """Return a key's name if it is valid; it appears in lists and logs."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ParameterError(f"a key's name is {name!r}, expected 1 to 64 letters, digits, dots, _ or -")
    return name


def check_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes in their usual order."""
    given = set(scopes)
    if not given or not given <= set(SCOPES):
        named = ", ".join(sorted(given)) or "none"
        raise ParameterError(f"scopes are {named}, expected some of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in given)


def keys_from_environment(environment: Mapping[str, str]) -> list[KeyRow]:
    """Return the keys of COTERIE_KEY_<NAME>=scope+scope:key, and of COTERIE_KEY=key, which has all scopes."""
    found = []
    for variable, text in environment.items():
        if variable != "COTERIE_KEY" and not variable.startswith("COTERIE_KEY_"):
            continue
        name = variable.removeprefix("COTERIE_KEY").lstrip("_").lower() or "environment"
        scopes, colon, key = text.rpartition(":")
        if len(key) < LEAST:
            raise ParameterError(f"the key in {variable} has {len(key)} characters, expected {LEAST} or more")
        scopes_of = check_scopes(scopes.split("+") if colon else SCOPES)
        found.append(KeyRow(name, scopes_of, hash_key(key), 0))
    return found


def keys_from_settings(keys: Mapping[str, str]) -> list[KeyRow]:
    """Return the keys of the settings file: "name:scope+scope" = "<SHA-256 in hexadecimal>"."""
    found = []
    for label, text in keys.items():
        name, _, scopes = label.partition(":")
        try:
            digest = bytes.fromhex(text)
            if len(digest) != 32:
                raise ValueError
        except ValueError as error:
            raise ParameterError(f"the key {name!r} is not a SHA-256 in hexadecimal") from error
        found.append(KeyRow(check_name(name), check_scopes(scopes.split("+")), digest, 0))
    return found


class Keyring:
    """The service's keys: those of its settings, and those of its store, which may change.

    False until there is a key: then none is needed, and the service listens only on loopback. Once there was a key,
    one is needed until the service restarts, even if the last key is dropped.
    """

    def __init__(self, fixed: Iterable[KeyRow], stored: Iterable[KeyRow] = ()) -> None:
        self._fixed = list(fixed)
        self._needed = False
        self.renew(stored)

    def __bool__(self) -> bool:
        return self._needed

    def renew(self, stored: Iterable[KeyRow]) -> None:
        """Replace the store's keys."""
        self.keys = [*self._fixed, *stored]
        self._needed = self._needed or bool(self.keys)

    def find(self, key: str) -> KeyRow | None:
        """Return the row of a key. All hashes are compared, so that the time does not depend on the key."""
        digest = hash_key(key)
        found = None
        for row in self.keys:
            if hmac.compare_digest(row.hash, digest):
                found = row
        return found
