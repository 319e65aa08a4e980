"""The results in words, for readers without knowledge of bandits. Every claim follows from the numbers."""

import math

from coterie.experiments.run.specs import KINDS, Spec, defaults
from coterie.experiments.study.compare import Comparison, Result
from coterie.experiments.study.verdict import (
    FEW,
    Rate,
    chance_in_runs,
    chance_of_best,
    is_ahead,
    is_ahead_in_runs,
)

ABOUT = {
    "hierarchical": "learns from everybody what users are like on the whole and how they differ. A new user "
    "starts with that, and the user's own payoffs count the more, the more of them there are.",
    "cab": "asks, for each item apart, which users seem to react to this item alike. It decides with what "
    "they know together, and once it is sure enough, one user's payoff teaches all of them.",
    "dynucb": "sorts users into a fixed number of groups by their tastes, and moves them as it learns. "
    "A group decides with what its members know together.",
    "club": "begins with all users in one group, and parts those whose tastes turn out to differ. "
    "A group decides with what its members know together.",
    "linucb-single": "keeps one picture of taste for everybody, as if all users were one person.",
    "linucb-multiple": "keeps a picture of taste for each user. Nobody's experience helps anybody else.",
    "random": "picks blindly. It never learns, and so shows what learning is worth.",
}


# The first of these that plays is named in the headline even if it did not win.
OURS = ("hierarchical", "cab")


def about(spec: Spec) -> str:
    """Return what a policy does, in one or two sentences."""
    known = ABOUT.get(spec.text.split(":")[0])
    return known or (KINDS[spec.name].__doc__ or "").split("\n")[0]


def headline(comparison: Comparison) -> str:
    """Return which policy won, in a few words."""
    first, *others = comparison.results
    if not others:
        return f"{first.spec.title} on its own"
    if not is_clear(comparison):
        if comparison.plan.is_log:
            return f"No clear winner: {first.spec.title} and {others[0].spec.title} came out close"
        runs = "a single run" if comparison.plan.n_runs == 1 else f"{comparison.plan.n_runs} runs"
        return f"No clear winner in {runs}: {first.spec.title} came before {others[0].spec.title}"
    ours = [result.spec for name in OURS for result in comparison.results if result.spec.name == name]
    if ours and first.spec.name != ours[0].name:
        return f"{ours[0].title} did not win here: {first.spec.title} did"
    if comparison.plan.is_log:
        return f"{first.spec.title} won"
    less = 1 - first.over("regret").mean / others[0].over("regret").mean
    return f"{first.spec.title} won: it lost {less:.0%} less than the next best"


def is_clear(comparison: Comparison) -> bool:
    """Return whether the first is significantly the best.

    On a log: whether its lead over all others would be found in fewer than 1 in 100 logs where all pay the same, by
    the sampling error of the kept records. In a world: whether its lead over all others would be found in fewer than
    1 in 100 comparisons where all lose the same, by how the differences of regrets vary from run to run.
    """
    if comparison.plan.is_log:
        return is_ahead(*_rates(comparison), _tried(comparison))
    return is_ahead_in_runs(*_regrets(comparison), _tried(comparison))


def _regrets(comparison: Comparison) -> tuple[list[float], list[list[float]]]:
    """Return the first's regret in each run, and the others'."""
    first, *others = [[run.regret for run in result.runs] for result in comparison.results]
    return first, others


def _rates(comparison: Comparison) -> tuple[Rate, list[Rate]]:
    """Return the first's click-through rate and the others'."""
    first, *others = [result.rate for result in comparison.results if result.rate is not None]
    return first, others


def _tried(comparison: Comparison) -> int:
    """Return how many settings were played, including those of which only the best is shown."""
    return len(comparison.results) + sum(len(found) - 1 for found in comparison.hindsight.values())


def lead(comparison: Comparison) -> str:
    """Return the result in a few sentences."""
    first, *others = comparison.results
    n_runs = comparison.plan.n_runs
    if comparison.plan.is_log:
        return _lead_log(comparison)
    text = _lead_world(first, others)
    if n_runs == 1:
        return text + " This was a single run, so luck may have played a part."
    if not others:
        return text
    if is_clear(comparison):
        return (
            f"{text} By how the {n_runs} runs differ, such a lead would be found in fewer than 1 in 100 "
            "comparisons where all lose the same."
        )
    found = chance_in_runs(*_regrets(comparison), _tried(comparison))
    often = (
        f"up to {math.ceil(100 * found)} in 100 comparisons" if found < 0.99 else "nearly every comparison"
    )
    return (
        f"{text} But by how the {n_runs} runs differ, such a lead would be found in {often} where all lose the same, "
        "so do not rely on the order. More runs give more certainty (--runs)."
    )


def _lead_world(first: Result, others: list[Result]) -> str:
    share = first.over("share_of_best").mean
    rounds = f"{first.runs[0].n_rounds:,} rounds"
    text = f"Over {rounds}, {first.spec.title} earned {share:.0%} of what was possible."
    if not others:
        return text
    lost, next_lost = first.over("regret").mean, others[0].over("regret").mean
    return (
        f"{text} By not always showing the best item it lost {lost:,.0f} points in total; "
        f"the next best, {others[0].spec.title}, lost {next_lost:,.0f}."
    )


def _lead_log(comparison: Comparison) -> str:
    first, *others = comparison.results
    rate, rest = _rates(comparison)
    text = f"Where its choice could be checked, {first.spec.title} was paid {rate.value:.4f} on average"
    if not others:
        return text + "."
    text += f"; the next best, {others[0].spec.title}, {rest[0].value:.4f}."
    few = min(comparison.results, key=lambda result: result.rate.fewest if result.rate else 0)
    fewest = min(one.fewest for one in (rate, *rest))
    if fewest < FEW:
        return (
            f"{text} But {few.spec.title} kept only {fewest} {'record' if fewest == 1 else 'records'} in one of its "
            "runs, too few to compare."
        )
    found = chance_of_best(rate, rest, _tried(comparison))
    if is_clear(comparison):
        return f"{text} Such a lead would be found in fewer than 1 in 100 logs where all pay the same."
    often = f"up to {100 * found:.0f} in 100 logs" if found < 0.995 else "nearly every log"
    same = f"such a lead would be found in {often} where all pay the same"
    return f"{text} But {same}, so do not rely on the order."


def reasons_title(comparison: Comparison) -> str:
    """Return the title of the reasons."""
    first = comparison.results[0]
    if len(comparison.results) > 1 and not comparison.plan.is_log and is_clear(comparison):
        return f"Why {first.spec.title} won"
    return "How each of them did"


def reasons(comparison: Comparison) -> list[tuple[Spec, str]]:
    """Return, for each policy, what its numbers say about its result."""
    best = comparison.results[0]
    texts = []
    for result in comparison.results:
        parts = [_paid(result) if comparison.plan.is_log else _pace(result)]
        if KINDS[result.spec.name].finds_neighbours:
            parts.append(_sharing(result))
        if result is not best and not comparison.plan.is_log:
            parts.append(_trouble(result, best, comparison))
        texts.append((result.spec, " ".join(part for part in parts if part)))
    return texts


def _pace(result: Result) -> str:
    early, late = result.over("early_loss").mean, result.over("late_loss").mean
    return f"lost {early:.3f} per round in the first fifth of the rounds and {late:.3f} in the last."


def _paid(result: Result) -> str:
    if result.rate is None or result.rate.value != result.rate.value:
        return "kept no record, so nothing can be said about it."
    return f"was paid {result.rate.value:.4f} on average over {result.over('kept').mean:,.0f} kept records."


def _sharing(result: Result) -> str:
    users = result.over("neighbours").mean
    shared, taught = result.over("share_rate").mean, result.over("shared_with").mean
    text = f"It did not decide alone: on average {users:,.0f} users' experience went into a decision."
    if "gamma" not in defaults(result.spec.name):  # by design, a payoff updates one user
        return text
    if not shared >= 0.005:
        return text + " It was hardly ever sure enough to let one payoff teach several users."
    return text + f" And {shared:.0%} of the payoffs taught several users at once, {taught:,.0f} on average."


def _trouble(result: Result, best: Result, comparison: Comparison) -> str:
    """Return why a policy lost more than the best, if the numbers show it."""
    name, title = result.spec.text.split(":")[0], best.spec.title
    slow = result.over("early_loss").mean > 1.1 * best.over("early_loss").mean
    stuck = result.over("late_loss").mean > 1.1 * best.over("late_loss").mean
    if name == "linucb-single" and stuck:
        return "More rounds hardly help it: what most users like is not what each of them likes."
    if name == "linucb-multiple" and (slow or stuck):
        world = comparison.plan.world
        n_users = getattr(world, "n_users", None) or world.parameters()["n_users"]
        visits = comparison.plan.n_rounds / n_users
        late = f", and even at the end it lost more than {title}" if stuck else ""
        return f"It begins at nothing with each user, who came about {visits:,.0f} times{late}."
    return ""
