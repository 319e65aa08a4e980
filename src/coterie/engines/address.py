"""Engines as text: `local?shards=4`, `cuda`, `cuda?device=cuda:1`."""

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from coterie.engines.local import Local
from coterie.engines.supervisor import WhenDown
from coterie.errors import ParameterError

EXPECTED = (
    "local, then ?shards=4, if need be &snapshot-every=…; or cuda, if need be with ?device=… &most-users=…"
)


def open_engine(text: str, when_down: WhenDown = "wait") -> Any:
    """Return the engine that a text describes."""
    try:
        kind, question, rest = text.partition("?")
        parts = urlsplit(text if "://" in text else f"{kind}://{question}{rest}")
        given = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        known: dict[str, type] = {"shards": int, "snapshot-every": int}
        if parts.scheme == "cuda":
            known = {"device": str, "block": int, "most-users": int}
        settings = {name.replace("-", "_"): known[name](value) for name, value in given.items()}
    except (ValueError, KeyError) as error:
        raise ParameterError(f"engine {text!r} cannot be read ({error}); expected {EXPECTED}") from None
    if parts.scheme not in ("local", "cuda") or parts.path or parts.netloc:
        raise ParameterError(f"engine {text!r} is not known; expected {EXPECTED}")
    if parts.scheme == "local":
        return Local(when_down=when_down, **settings)
    from coterie.engines.cuda import Cuda

    return Cuda(**settings)
