"""One decision: what the policy is asked, the choice with its exploration, and the record. Nothing is changed."""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import SHARED
from coterie.data.logs.records import ArmName, Features, Kind, Rank, ShownAction
from coterie.data.logs.rules import Config
from coterie.models.encoded import Encoded
from coterie.models.probability import pick
from coterie.policies import Decision, Policy
from coterie.service.core.encoding import KnownActions, encode_known, encode_question, shown
from coterie.service.core.policies import Policies
from coterie.service.core.question import Question, pack_features, without_ignored
from coterie.service.core.reasons import LARGEST, pack_parts, pack_reasons
from coterie.service.problems import Problem


class Candidates(NamedTuple):
    """A question as a policy reads it."""

    ids: list[str]  # of all actions
    open_to: Sequence[int]  # positions of the actions that are not excluded
    kind: Kind
    contexts: Any  # of the actions that are not excluded
    around: Features
    featured: bool  # whether any action has features
    encoded: Encoded | None = None  # the contexts by hashes, unless they are ids

    def action(self, k: int) -> ShownAction:
        """Return one of the actions that are not excluded, as it is shown."""
        name, encoded = self.ids[self.open_to[k]], self.encoded
        if not (self.featured or self.around):
            return ShownAction(name)
        return (
            shown(name, None, self.around)
            if encoded is None
            else ShownAction.of(name, encoded, k, self.featured)
        )


def read_candidates(question: Question, policies: Policies) -> Candidates:
    """Return what the policy is asked."""
    question = without_ignored(question, policies.config)
    actions, excluded = question.actions, question.excluded
    known = actions if isinstance(actions, KnownActions) else None
    ids = [action.id for action in actions] if known is None else known.ids
    featured = any(action.features for action in actions) if known is None else known.featured
    open_to = [k for k, name in enumerate(ids) if name not in excluded] if excluded else range(len(ids))
    if not open_to:
        raise Problem(422, "no_action_left", "every action is excluded; leave at least one to choose")
    left, around = [ids[k] for k in open_to] if excluded else ids, question.context
    kind = policies.kind_of(featured)
    if kind == "items":
        policies.check_items(left)
        return Candidates(ids, open_to, kind, left, around, featured)
    if known is not None and not excluded:
        encoded = encode_known(known, around)
    else:
        encoded = encode_question(left, [actions[k].features for k in open_to], around)
    contexts = encoded if kind == "model" else encoded.vectors(policies.config.dimensions)
    return Candidates(ids, open_to, kind, contexts, around, featured, encoded)


class Asked(NamedTuple):
    """Who asks what, and when."""

    question: Question
    digest: bytes
    at: int
    user: int
    arm: ArmName
    state: int  # the position whose state it is decided from


class Choice(NamedTuple):
    """What is shown, by positions among the actions that are not excluded."""

    shown: int
    best: int  # what the policy would choose
    baseline: int
    why: str  # "", "baseline" or "explored"
    chances: Floats  # of each action


def decide(asked: Asked, config: Config, policies: Policies, secret: bytes) -> tuple[Rank, Decision]:
    """Return a new decision, and why it was made."""
    question = asked.question
    candidates = read_candidates(question, policies)
    policy = policies.of(candidates.kind)
    decision = policy.decide(asked.user, candidates.contexts)
    if question.price > 0:
        decision = decision.less(question.price * np.array(question.costs)[candidates.open_to])
    choice = _choose(asked, candidates, decision, policy, config, secret)
    reasons = parts = None
    if config.record_reasons:
        reasons = pack_reasons(decision)
        parts = pack_parts(policy.contributions(asked.user, candidates.contexts, choice.shown, LARGEST))
    ids, open_to, action = candidates.ids, candidates.open_to, candidates.action(choice.shown)
    ranking, left = decision.ranking_with(choice.shown), _places(ids, question.excluded)
    record = Rank(
        at=asked.at,
        event=question.event,
        user=asked.user,
        actions=tuple(ids),
        order=(*[open_to[k] for k in ranking], *left) if left else tuple(ranking),
        best=open_to[choice.best],
        baseline=open_to[choice.baseline],
        chances=choice.chances.tobytes(),
        digest=asked.digest,
        excluded=left,
        capped=_places(ids, question.capped),
        deferred=question.deferred,
        reasons=reasons,
        features=pack_features(question),
        slot=question.slot,
        shown=choice.why,
        hashed=action.hashed,
        featured=action.featured,
        parts=parts,
        arm=asked.arm,
        alone=question.user == SHARED,
        costs=np.array(question.costs).tobytes() if question.costs else None,
        price=question.price,
        unaffordable=_places(ids, question.unaffordable),
        state=asked.state,
    )
    return record, decision


def _choose(
    asked: Asked, candidates: Candidates, decision: Decision, policy: Policy, config: Config, secret: bytes
) -> Choice:
    """Return what is shown: what the policy or a draw says, or the baseline."""
    question, ids, open_to = asked.question, candidates.ids, candidates.open_to
    baseline = 0
    if question.baseline is not None:
        baseline = next((i for i, k in enumerate(open_to) if ids[k] == question.baseline), 0)
    all_capped = ids[open_to[0]] in question.capped
    if config.mode != "online" or asked.arm == "holdback" or all_capped:
        certain = np.eye(1, len(open_to), baseline)[0]
        return Choice(baseline, decision.guess, baseline, "baseline", certain)
    best, draws = decision.choice, draw(question.event, secret)
    kept, uniform = _kept(decision, policy, config)
    if question.costs and question.share < math.inf:
        costs = np.array(question.costs)[open_to]
        shown, chances = _explore_within(kept, uniform, question.share, costs, draws)
    else:
        shown, chances = _explore(kept, uniform, draws)
    return Choice(shown, best, baseline, "" if shown == best else "explored", chances)


def _places(ids: Sequence[str], names: frozenset[str]) -> tuple[int, ...]:
    """Return where some actions are in the list."""
    return tuple(k for k, name in enumerate(ids) if name in names) if names else ()


def _kept(decision: Decision, policy: Policy, config: Config) -> tuple[Floats, float]:
    """Return the probabilities of what is not left to a uniform choice, and the share of uniform choices.

    They are the policy's own, unless the best action is asked for.
    """
    if policy.name != "random" and config.explore == "policy" and config.exploration > 0:
        return decision.probability, config.exploration
    best = np.eye(1, len(decision.score), decision.choice)[0]
    return best, 1.0 if policy.name == "random" else config.exploration


def _explore(kept: Floats, uniform: float, draws: tuple[float, float]) -> tuple[int, Floats]:
    """Return an action, and each action's probability.

    With probability `uniform` it is any of n actions, else what is drawn from `kept`: so action k has the probability
    (1 − uniform)·p_k + uniform/n.
    """
    n, (chance, which) = len(kept), draws
    action = int(which * n) if chance < uniform else pick(kept, which)
    return action, (1 - uniform) * kept + uniform / n


def _explore_within(
    kept: Floats, uniform: float, share: float, costs: Floats, draws: tuple[float, float]
) -> tuple[int, Floats]:
    """Return the same under a budget: an action that costs c > 1 shares of it gets 1/c of its uniform choices.

    So exploration costs no more than its part of the budget, whatever an action costs.
    """
    explored = (
        np.where(costs > share, share / np.where(costs > share, costs, 1.0), 1.0) * uniform / len(costs)
    )
    chances = (1 - explored.sum()) * kept + explored
    return pick(chances, draws[1]), chances


def draw(event: str, secret: bytes) -> tuple[float, float]:
    """Return two uniform numbers in [0, 1) that depend on the event's id and the loop's secret only."""
    name = event.encode("utf-8", "surrogatepass")
    digest = blake2b(name, digest_size=16, person=b"coterie", key=secret).digest()
    first, second = digest[:8], digest[8:]
    return (int.from_bytes(first, "little") >> 11) / 2**53, (int.from_bytes(second, "little") >> 11) / 2**53
