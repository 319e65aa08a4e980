"""Schemathesis, with the links from rank to reward: no 5xx, and no answer that is not documented."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck
from litestar.testing import TestClient
from schemathesis.config import SchemathesisConfig

from coterie.service.serve import make_app
from coterie.service.settings import Config, Settings
from coterie.service.sqlite_store import SqliteStore

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "15"))
RULES = SchemathesisConfig.from_dict(
    {
        "checks": {
            # What JSON schema cannot say (all actions excluded, one id twice) is answered 422.
            "positive_data_acceptance": {
                "expected-statuses": ["2xx", "401", "403", "404", "409", "413", "422"]
            },
        }
    }
)
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("schema")
    chosen = Settings(store=str(folder / "log.db"), config=Config(wait=1.0))
    app = make_app(chosen, SqliteStore(chosen.store))
    with TestClient(app, base_url="http://127.0.0.1") as client:  # the desk runs as long as the client
        loaded = schemathesis.openapi.from_dict(client.get("/openapi.json").json(), config=RULES)
        loaded.app = app
        yield loaded, client
    assert Path(chosen.store).exists()


def _call(client: Any, case: Any) -> Any:
    """Send a case through the client whose loop runs the desk."""
    sent = case.as_transport_kwargs(base_url="http://127.0.0.1")
    return sent


def test_print(schema: Any) -> None:
    loaded, client = schema
    for result in loaded.get_all_operations():
        operation = result.ok()
        print(operation.method, operation.path)
        case = operation.as_strategy().example()
        print(case, case.as_transport_kwargs())
