"""The results in words, for readers without knowledge of bandits. Every claim follows from the numbers."""

import math

from coterie.evaluation.verdict import FEW, FIRST_RUNS, can_show
from coterie.experiments.run.specs import KINDS, Spec, defaults
from coterie.experiments.study.compare import Comparison, Result
from coterie.report.page import count

ABOUT = {
    "hierarchical": "learns from all users what users are like on average and how much they differ. A new user "
    "starts with that. The more payoffs a user has, the more these payoffs count.",
    "cab": "finds, for each item separately, the users who react to this item alike. It decides with their data "
    "together, and once it is sure enough, one user's payoff teaches all of them.",
    "dynucb": "sorts users into a fixed number of groups by their tastes, and moves them as it learns. "
    "A group decides with the data of all its members.",
    "club": "starts with all users in one group, and separates those whose tastes turn out to differ. "
    "A group decides with the data of all its members.",
    "linucb-single": "keeps one model for all users, as if they were one person.",
    "linucb-multiple": "keeps one model for each user. No user's experience helps another.",
    "random": "chooses at random. It never learns, so it shows what learning is worth.",
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
    if not comparison.is_clear:
        if comparison.plan.is_log:
            return f"No clear winner: {first.spec.title} and {others[0].spec.title} came out close"
        return f"No clear winner: {first.spec.title} {_lost_less(comparison)}"
    ours = [result.spec for name in OURS for result in comparison.results if result.spec.name == name]
    if ours and first.spec.name != ours[0].name:
        return f"{ours[0].title} did not win here: {first.spec.title} did"
    if comparison.plan.is_log:
        return f"{first.spec.title} won"
    less = 1 - first.over("regret").mean / others[0].over("regret").mean
    return f"{first.spec.title} won: it lost {less:.0%} less than {others[0].spec.title}, the next best"


def reason(comparison: Comparison) -> str:
    """Return why there is a winner, or why there is none and what to do."""
    if len(comparison.results) == 1:
        return "Name more policies to compare it with (--policies)."
    if comparison.plan.is_log:
        return _reason_on_log(comparison)
    if comparison.is_clear:
        return (
            f"It {_lost_less(comparison)}; equal policies differ so much in fewer than 1 in 100 comparisons."
        )
    n_runs = len(comparison.results[0].runs)
    if not can_show(n_runs):
        return f"{count(n_runs, 'run').capitalize()} cannot show more; try --runs {FIRST_RUNS}."
    often = _often(comparison.chance, "comparisons", "comparison")
    more = FIRST_RUNS * 2 ** (1 + max(0, int(math.log2(n_runs / FIRST_RUNS))))
    return f"Equal policies differ so much in {often}, so do not rely on the order; try --runs {more}."


def _lost_less(comparison: Comparison) -> str:
    """Return in how many runs the first lost less than its closest rival, and by how much."""
    first, other = comparison.results[0], comparison.closest
    leads = first.sample.leads(other.sample)
    low, high = leads.min(), leads.max()
    shape = ",.0f" if high - low >= 2 or high >= 100 else ".3g"
    by = (
        f"by {low:{shape}} to {high:{shape}}"
        if low >= 0
        else f"from {-low:{shape}} more to {high:{shape}} less"
    )
    by = f"by {high:{shape}}" if len(leads) == 1 else by
    return f"lost less than {other.spec.title} in {(leads > 0).sum()} of {count(len(leads), 'run')} ({by})"


def _often(chance: float, many: str, one: str) -> str:
    """Return how often something is found, in words."""
    return f"up to {math.ceil(100 * chance)} in 100 {many}" if chance < 0.99 else f"nearly every {one}"


def columns(comparison: Comparison) -> str:
    """Return what the columns of the table mean."""
    random = " RAN chooses at random." if any(r.spec.name == "random" for r in comparison.results) else ""
    if comparison.plan.is_log:
        return f"A record counts only where a policy picked what the log had shown.{random}"
    return f"Lost is what the best choice in every round would have earned more (regret).{random}"


def next_step(comparison: Comparison) -> str:
    """Return what to do with the result, in one sentence."""
    if comparison.plan.is_log:
        return (
            f"Next: `coterie tune {comparison.plan.name}` finds the best settings of each policy on this log."
        )
    return "Next: `coterie compare log.csv` compares them on your own log, with the columns user, item and payoff."


def lead(comparison: Comparison) -> str:
    """Return the result in a few sentences."""
    first, *others = comparison.results
    text = _lead_log(comparison) if comparison.plan.is_log else _lead_world(first, others)
    return f"{text} {reason(comparison)}" if others else text


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
    text = (
        f"Where its choice could be checked, {first.spec.title} was paid {first.sample.value:.4f} on average"
    )
    return (
        f"{text}; the next best, {others[0].spec.title}, {others[0].sample.value:.4f}."
        if others
        else f"{text}."
    )


def _reason_on_log(comparison: Comparison) -> str:
    few = min(comparison.results, key=lambda result: result.sample.fewest)
    if few.sample.fewest < FEW:
        kept = count(few.sample.fewest, "record")
        return f"{few.spec.title} kept only {kept} in one of its runs, too few to compare: use a longer log."
    if comparison.is_clear:
        return "Such a lead would be found in fewer than 1 in 100 logs where all pay the same."
    often = _often(comparison.chance, "logs", "log")
    return f"Such a lead would be found in {often} where all pay the same, so do not rely on the order."


def reasons_title(comparison: Comparison) -> str:
    """Return the title of the reasons."""
    first = comparison.results[0]
    if len(comparison.results) > 1 and not comparison.plan.is_log and comparison.is_clear:
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
        return f"Every user starts without data and came about {visits:,.0f} times{late}."
    return ""
