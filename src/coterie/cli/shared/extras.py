"""The error for missing libraries of the service."""

from importlib.util import find_spec

from coterie.errors import MissingExtraError


def need_service() -> None:
    """Raise MissingExtraError unless the service extra is installed."""
    for name in ("litestar", "msgspec", "uvicorn", "prometheus_client", "pyarrow"):
        if find_spec(name) is None:
            raise MissingExtraError(f"this command needs {name}: pip install 'coterie[service]'")
