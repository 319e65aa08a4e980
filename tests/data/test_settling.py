"""What readers of a log count as a decision's rewards is what the service learned."""

import pytest

from coterie.data.logs.records import Record, decode
from coterie.data.logs.rules import Aggregation, Config
from coterie.data.logs.settling import settled
from coterie.service.core.bandit import Bandit
from coterie.service.core.draft import Draft
from tests.service.helpers import ask


@pytest.mark.parametrize(
    ("aggregation", "counted", "value"), [("earliest", 1, 0.25), ("sum", 3, 1.0), ("average", 3, 1.0 / 3)]
)
def test_rewards_that_services_took_at_once_count_as_they_were_learned(
    aggregation: Aggregation, counted: int, value: float
) -> None:
    """Each service plans from the same state, so that all seem to be applied; the order of the log decides."""
    made = Bandit()
    made.configure(Config(wait=1.0, aggregation=aggregation), 1)
    made.rank(ask("e"), 2)
    planned: list[Record] = []
    for worth, name in ((0.25, "a"), (0.5, "a"), (0.25, "b"), (0.5, None)):
        made.draft = Draft(3)
        assert made.reward("e", worth, 3, name) == "applied"
        planned += made.draft.records
        made.draft = None
    outcomes = [made.apply(record) for record in planned]
    assert outcomes.count("applied") == counted
    made.tick(5000)
    whole = [*map(decode, made.outbox[:2]), *planned]
    (one,) = settled(enumerate(whole))
    assert one.count == counted
    assert one.reward == pytest.approx(value)
    assert made.events["e"].value == pytest.approx(value)
