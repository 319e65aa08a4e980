"""Compiling the loops of a policy before the first request needs them."""

from coterie.data.logs.records import Features
from coterie.data.logs.rules import Config
from coterie.service.core.bandit import Bandit
from coterie.service.core.policy_config import possible
from coterie.service.core.question import Action, Question
from coterie.service.trial.assignment import alone, challenger_of


def warm_up(config: Config) -> None:
    """Compile all that is compiled on first use."""
    other = challenger_of(config)
    if other is not None:
        warm_up(other)
        config = alone(config)
    made = Bandit()
    made.configure(config, 0)
    for kind in possible(config):
        features: Features | None = [{"a": 1}] if kind != "items" else None
        actions = [Action("a", features), Action("b", features)]
        # A policy may have one loop for actions in a context, and one for others.
        contexts: list[Features] = [[], [{"c": 1}]] if features else [[]]
        for context in contexts:
            for user in ("one", "two", "three"):
                event = f"{kind}-{len(context)}-{user}"
                made.rank(Question(event, user, actions, context), 0)
                made.reward(event, 1.0, 0)
        made.policies.made[kind].tensors()
        made.forget("one", 0)
