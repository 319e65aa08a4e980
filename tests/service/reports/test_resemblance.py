"""Who is alike on an item, and the groups an item makes."""

from typing import Any

import numpy as np
import pytest

from coterie.policies import CAB, LinUCB
from coterie.service.core.question import Action, Question
from coterie.service.reports import resemblance
from coterie.service.reports.latest import LatestDecisions
from coterie.service.reports.resemblance import Place
from tests.service.helpers import START, ask, bandit, decide


@pytest.mark.parametrize("policy", [CAB(one_hot=True, alpha=0.3), LinUCB(one_hot=True, alpha=0.3)])
def test_places_are_what_deciding_sees(policy: Any) -> None:
    made = bandit(policy="cab")
    rng = np.random.default_rng(3)
    for k in range(40):
        decide(made, ask(f"e{k}", f"u{k % 5}"))
        policy.learn(made.names[f"u{k % 5}"], "abc"[k % 3], float(rng.random()))
    users = list(made.users)
    found = resemblance.places(policy, ["a", "b", "new"], users, made)
    for column, item in zip(found, ["a", "b", "new"], strict=True):
        for place, user in zip(column, users, strict=True):
            decision = policy.explain(user, [item])
            assert place.estimate == pytest.approx(decision.estimate[0])
            assert place.width == pytest.approx(decision.width[0])
            assert place.known == (item != "new")


def test_alike_is_the_neighbourhood_of_cab() -> None:
    made = bandit(policy="cab")
    policy = CAB(one_hot=True, alpha=0.2)
    rng = np.random.default_rng(1)
    for k in range(60):
        decide(made, ask(f"e{k}", f"u{k % 6}"))
        policy.learn(made.names[f"u{k % 6}"], "a", float(rng.random() < (k % 6) / 6))
    users = list(made.users)
    (standing,) = resemblance.places(policy, ["a"], users, made)
    for user, mine in zip(users, standing, strict=True):
        near = {made.ids[other] for other in policy.neighbours(user, "a")}  # type: ignore[index]
        assert near == {place.user for place in standing if resemblance.alike(mine, place)}


def test_groups_are_disjoint_and_complete() -> None:
    standing = [
        Place("a", 0.9, 0.05, True),
        Place("b", 0.8, 0.10, True),
        Place("c", 0.1, 0.05, True),
        Place("d", 0.5, 0.02, True),
        Place("e", 0.0, 0.90, False),
    ]
    found = [[place.user for place in group] for group in resemblance.groups(standing)]
    assert found == [["a", "b"], ["d"], ["c"]]


def test_vectors_are_looked_at_as_they_were_last_chosen() -> None:
    made = bandit(policy="cab", exploration=0.0)
    actions = [Action("news", [{"type": "news"}]), Action("jazz", [{"type": "music"}])]
    record = decide(made, Question("e1", "ann", actions))
    made.reward("e1", 1.0, START)
    last = LatestDecisions()
    last._take(record)
    item = record.actions[record.choice]
    found = resemblance.context_of(item, made, last.of(made))
    assert found is not None
    (place,) = resemblance.places(found[0], [found[1]], [record.user], made)[0]
    assert place.known
    assert place.estimate > 0.3
    assert resemblance.context_of("never", made, last.of(made)) is None
