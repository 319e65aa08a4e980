"""R16: a request that is answered with an error has changed nothing, whatever the route.

Schemathesis makes requests from the OpenAPI document, valid ones and broken ones. Everything that is kept is
compared: the whole state, the log, keys, users' names, evaluations and snapshots. NOTHING_CHANGED is how many
requests there are of each kind and route in the slow test. Personalizer's routes are not in the document; `fuzzing`
does the same for them.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.snapshots import snapshot
from tests.service.helpers import served

MANY = int(os.environ.get("NOTHING_CHANGED", "200"))
BODY = {
    "user": "ann",
    "actions": [{"id": "a", "features": {"size": 1}}, {"id": "b"}],
    "context": {"hour": 3},
}


def kept(coordinator: Coordinator) -> tuple[Any, ...]:
    """Return all that a request may change."""
    bandit, store = coordinator.bandit, coordinator.store
    return (
        snapshot.dump(bandit),
        bandit.position,
        dict(bandit.names),
        store.bounds(),
        store.log_bytes(),
        store.users(),
        store.keys(),
        store.scrubs(),
        store.newest(),
        set(store.evaluation_sums()),  # not what they say: a job runs beside requests
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [4, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_an_error_has_changed_nothing(tmp_path: Path, mode: GenerationMode, examples: int) -> None:
    refused: dict[str, int] = {}
    rules = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with served(tmp_path / "log.db") as (client, coordinator):
        for k in range(4):
            client.post("/v1/rank", json={**BODY, "eventId": f"e{k}"})
            client.post(f"/v1/events/e{k}/reward", json={"value": k / 4})
        schema: Any = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        for found in schema.get_all_operations():
            operation = found.ok()
            if mode is GenerationMode.NEGATIVE and not (operation.body or operation.path_parameters):
                continue  # nothing to get wrong

            @rules
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: Any) -> None:
                given = case.as_transport_kwargs(base_url="http://127.0.0.1")
                before = kept(coordinator)
                answer = client.request(**given)
                assert answer.status_code < 500, (given, answer.text)
                if answer.status_code >= 400:
                    refused[case.operation.path] = refused.get(case.operation.path, 0) + 1
                    assert kept(coordinator) == before, (given, answer.text)

            check()
    assert len(refused) > 8, refused
