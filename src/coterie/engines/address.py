"""An engine as text: `cuda`, `cuda?device=cuda:1`, `cuda?most-users=5000000`."""

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from coterie.errors import ParameterError

if TYPE_CHECKING:
    from coterie.engines.cuda import Cuda

KNOWN: dict[str, type] = {"device": str, "block": int, "most-users": int}


def open_engine(text: str) -> "Cuda":
    """Return the engine that a text describes."""
    kind, _, query = text.partition("?")
    if kind != "cuda":
        raise ParameterError(
            f"engine {text!r} is not known; expected cuda, if need be with ?device=… &most-users=…"
        )
    try:
        given = parse_qsl(query, strict_parsing=True) if query else []
        settings = {name.replace("-", "_"): KNOWN[name](value) for name, value in given}
    except (ValueError, KeyError) as error:
        raise ParameterError(
            f"engine {text!r} cannot be read ({error}); expected cuda, if need be with ?device=… &most-users=…"
        ) from None
    from coterie.engines.cuda import Cuda

    return Cuda(**settings)
