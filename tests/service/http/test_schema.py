"""Schemathesis, with the links from rank to reward: no 5xx, and no answer that is not documented."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from tests.service.process import service

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "12"))
TRIALS = 20  # of sequences, if Hypothesis gives up
RULES = {
    "checks": {
        # What JSON schema cannot say (all actions excluded, an id twice, too many features) is answered 422 or 413.
        "positive_data_acceptance": {
            "expected-statuses": ["2xx", "401", "403", "404", "409", "413", "422", "503"]
        },
        "negative_data_rejection": {"expected-statuses": ["4xx"]},
    }
}
RELAXED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def schema(tmp_path: Path) -> Iterator[Any]:
    """Start a new service per test: earlier requests would change its answers, and so what is tried."""
    with service("--store", str(tmp_path / "log.db")) as running:
        yield schemathesis.openapi.from_url(
            f"{running.url}/openapi.json", config=SchemathesisConfig.from_dict(RULES)
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_route_answers_as_documented(schema: Any, mode: GenerationMode) -> None:
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.path_parameters):
            continue  # nothing to get wrong

        @RELAXED
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            case.call_and_validate()

        check()


@pytest.mark.filterwarnings("ignore")
def test_sequences_over_the_links_answer_as_documented(schema: Any) -> None:
    # An event that is known, or a wait that was configured short and is over, lets the same beginning go on in
    # another way; Hypothesis cannot know that, and gives up. Then other sequences are tried. What is wrong with an
    # answer it tells all the same.
    for trial in range(TRIALS):
        machine = seed(trial)(schema.as_state_machine())
        try:
            machine.run(settings=settings(RELAXED, derandomize=False, stateful_step_count=8))
            return
        except FlakyStrategyDefinition:
            if trial == TRIALS - 1:
                raise
