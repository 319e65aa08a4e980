"""Engines keep users' models outside this process: on a GPU (`coterie.engines.Cuda`)."""

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from coterie.errors import ParameterError
from coterie.lazy import lazy_names

if TYPE_CHECKING:
    from coterie.engines.cuda import Cuda

__all__ = ["Cuda"]

__getattr__, __dir__ = lazy_names("coterie.engines", {"Cuda": "cuda"})

KNOWN: dict[str, type] = {"device": str, "block": int, "most-users": int}
EXPECTED = "expected cuda, if need be with ?device=… &most-users=…"


def open_engine(text: str) -> "Cuda":
    """Return the engine that a text describes: `cuda`, `cuda?device=cuda:1`, `cuda?most-users=5000000`."""
    kind, _, query = text.partition("?")
    if kind != "cuda":
        raise ParameterError(f"engine {text!r} is not known; {EXPECTED}")
    try:
        given = parse_qsl(query, strict_parsing=True) if query else []
        settings = {name.replace("-", "_"): KNOWN[name](value) for name, value in given}
    except (ValueError, KeyError) as error:
        raise ParameterError(f"engine {text!r} cannot be read ({error}); {EXPECTED}") from None
    from coterie.engines.cuda import Cuda

    return Cuda(**settings)
