"""What to say when the service's libraries are not installed."""

from importlib.util import find_spec

from coterie.errors import MissingExtraError


def need_service() -> None:
    """Raise unless the service extra is installed."""
    for name in ("litestar", "msgspec", "uvicorn", "prometheus_client"):
        if find_spec(name) is None:
            raise MissingExtraError(f"this command needs {name}: pip install 'coterie[service]'")
