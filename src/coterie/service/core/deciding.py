"""One decision: what the policy is asked, the choice with its exploration, and the record. Nothing is changed."""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.models.features import hash_actions
from coterie.models.probability import pick
from coterie.policies import Decision, Policy
from coterie.service.core.encoding import KnownActions, encode_action, encode_known, encode_question
from coterie.service.core.policies import Policies
from coterie.service.core.policy_config import Kind, takes_ids, takes_names
from coterie.service.core.question import Question, pack_features, without_ignored
from coterie.service.core.reasons import LARGEST, pack_parts, pack_reasons
from coterie.service.core.records import Rank
from coterie.service.problems import Problem
from coterie.service.settings import Config
from coterie.service.trial.assignment import Arm


class Candidates(NamedTuple):
    """A question as a policy reads it."""

    ids: list[str]  # of all actions
    open_to: Sequence[int]  # positions of the actions that are not excluded
    kind: Kind
    contexts: Any  # of the actions that are not excluded


def read_candidates(question: Question, config: Config, policies: Policies) -> Candidates:
    """Return what the policy is asked."""
    question = without_ignored(question, config)
    actions, excluded = question.actions, question.excluded
    if isinstance(actions, KnownActions) and not excluded and takes_names(config):
        return Candidates(actions.ids, range(len(actions)), "model", encode_known(actions, question.context))
    ids = [action.id for action in actions]
    open_to = [k for k, name in enumerate(ids) if name not in excluded] if excluded else range(len(ids))
    if not open_to:
        raise Problem(422, "no_action_left", "every action is excluded; leave at least one to choose")
    shown = [ids[k] for k in open_to] if excluded else ids
    if takes_names(config):
        features = [actions[k].features for k in open_to]
        return Candidates(ids, open_to, "model", encode_question(shown, features, question.context))
    if any(action.features for action in actions) or not takes_ids(config.policy):
        featured = [(ids[k], actions[k].features or ()) for k in open_to]
        vectors = hash_actions(featured, question.context, config.dimensions)
        return Candidates(ids, open_to, "vectors", vectors)
    policies.check_items(shown, config.max_items)
    return Candidates(ids, open_to, "items", shown)


class Asked(NamedTuple):
    """Who asks what, and when."""

    question: Question
    digest: bytes
    at: int
    user: int
    arm: Arm


class Choice(NamedTuple):
    """What is shown, by positions among the actions that are not excluded."""

    shown: int
    best: int  # what the policy would choose
    baseline: int
    why: str  # "", "baseline" or "explored"
    exploration: float
    probability: float  # of what is shown
    chances: Floats | None = None  # of each action, if the policy gives them


def decide(asked: Asked, config: Config, policies: Policies, secret: bytes) -> tuple[Rank, Decision]:
    """Return a new decision, and why it was made."""
    question = asked.question
    candidates = read_candidates(question, config, policies)
    policy = policies.of(candidates.kind, config)
    decision = policy.decide(asked.user, candidates.contexts)
    if question.price > 0:
        decision = decision.less(question.price * np.array(question.costs)[candidates.open_to])
    choice = _choose(asked, candidates, decision, policy, config, secret)
    reasons = parts = None
    if config.record_reasons:
        reasons = pack_reasons(decision)
        parts = pack_parts(policy.contributions(asked.user, candidates.contexts, choice.shown, LARGEST))
    ids, open_to, kind, contexts = candidates
    ranking, left = decision.ranking_with(choice.shown), _places(ids, question.excluded)
    record = Rank(
        at=asked.at,
        event=question.event,
        user=asked.user,
        actions=tuple(ids),
        order=(*[open_to[k] for k in ranking], *left) if left else tuple(ranking),
        choice=open_to[choice.shown],
        best=open_to[choice.best],
        baseline=open_to[choice.baseline],
        probability=choice.probability,
        exploration=choice.exploration,
        digest=asked.digest,
        excluded=left,
        capped=_places(ids, question.capped),
        deferred=question.deferred,
        x=contexts[choice.shown].tobytes() if kind == "vectors" else None,
        reasons=reasons,
        features=pack_features(question) if _has_features(question) else None,
        parent=question.parent,
        slot=question.slot,
        shown=choice.why,
        hashed=_hashed(question, candidates, choice.shown, config),
        chances=None if choice.chances is None else choice.chances.tobytes(),
        parts=parts,
        arm=asked.arm.name,
        alone=asked.arm.alone,
        costs=np.array(question.costs).tobytes() if question.costs else None,
        price=question.price,
        unaffordable=_places(ids, question.unaffordable),
    )
    return record, decision


def _choose(
    asked: Asked, candidates: Candidates, decision: Decision, policy: Policy, config: Config, secret: bytes
) -> Choice:
    """Return what is shown: what the policy or a draw says, or the baseline."""
    question, (ids, open_to, _, _) = asked.question, candidates
    baseline = 0
    if question.baseline is not None:
        baseline = next((i for i, k in enumerate(open_to) if ids[k] == question.baseline), 0)
    all_capped = ids[open_to[0]] in question.capped
    if config.mode != "online" or asked.arm.name == "holdback" or all_capped:
        return Choice(baseline, decision.guess, baseline, "baseline", 0.0, 1.0)
    chance, which = draw(question.event, secret)
    exploration, own = _own_choices(decision, policy, config)
    chances: Floats | None
    if question.costs and question.share < math.inf:
        costs = np.array(question.costs)[open_to]
        shown, why, chances = _explore_within(decision, own, exploration, question.share, costs, which)
    else:
        shown, why, chances = _explore(decision, own, exploration, chance, which)
    best = decision.choice
    likely = (
        probability(shown == best, exploration, len(open_to)) if chances is None else float(chances[shown])
    )
    return Choice(shown, best, baseline, why, exploration, likely, chances)


def _has_features(question: Question) -> bool:
    actions = question.actions
    featured = actions.featured if isinstance(actions, KnownActions) else any(one.features for one in actions)
    return bool(question.context) or featured


def _hashed(question: Question, candidates: Candidates, shown: int, config: Config) -> bytes | None:
    """Return the shown action by hashes, which another policy may learn later; none if it is an id alone."""
    if candidates.kind == "model":
        found: bytes = candidates.contexts.to_bytes(shown)
        return found
    if not _has_features(question):
        return None
    read = without_ignored(question, config)
    chosen = read.actions[candidates.open_to[shown]]
    return encode_action(chosen.id, chosen.features, read.context)


def _places(ids: Sequence[str], names: frozenset[str]) -> tuple[int, ...]:
    """Return where some actions are in the list."""
    return tuple(k for k, name in enumerate(ids) if name in names) if names else ()


def _own_choices(decision: Decision, policy: Policy, config: Config) -> tuple[float, bool]:
    """Return the share of uniform choices, and whether the others are drawn by the policy's own probabilities.

    They are not if the best action is certain or asked for.
    """
    if policy.name == "random":
        return 1.0, False
    certain = decision.probability[decision.choice] == 1
    return config.exploration, not certain and config.explore == "policy" and config.exploration > 0


def _explore(
    decision: Decision, own: bool, uniform: float, chance: float, which: float
) -> tuple[int, str, Floats | None]:
    """Return an action, "explored" if it was left to chance, and each action's probability if the policy gives them.

    With probability `uniform` it is any of n actions, else what the policy draws, if `own`, or its best: so action k
    has the probability (1 − uniform)·p_k + uniform/n.
    """
    n = len(decision.score)
    if not own:
        return (int(which * n), "explored", None) if chance < uniform else (decision.choice, "", None)
    action = int(which * n) if chance < uniform else pick(decision.probability, which)
    chances = (1 - uniform) * decision.probability + uniform / n
    return action, "" if action == decision.choice else "explored", chances


def _explore_within(
    decision: Decision, own: bool, uniform: float, share: float, costs: Floats, which: float
) -> tuple[int, str, Floats]:
    """Return the same under a budget: an action that costs c > 1 shares of it gets 1/c of its uniform choices.

    So exploration costs no more than its part of the budget, whatever an action costs.
    """
    n = len(costs)
    kept = decision.probability if own else np.eye(1, n, decision.choice)[0]
    explored = np.where(costs > share, share / np.where(costs > share, costs, 1.0), 1.0) * uniform / n
    chances = (1 - explored.sum()) * kept + explored
    action = pick(chances, which)
    return action, "" if action == decision.choice else "explored", chances


def draw(event: str, secret: bytes) -> tuple[float, float]:
    """Return two uniform numbers in [0, 1) that depend on the event's id and the loop's secret only."""
    name = event.encode("utf-8", "surrogatepass")
    digest = blake2b(name, digest_size=16, person=b"coterie", key=secret).digest()
    first, second = digest[:8], digest[8:]
    return (int.from_bytes(first, "little") >> 11) / 2**53, (int.from_bytes(second, "little") >> 11) / 2**53


def probability(best: bool, exploration: float, choices: int) -> float:
    """Return how likely an action was: the policy's choice, or one of all by chance."""
    return exploration / choices + (1 - exploration if best else 0.0)
