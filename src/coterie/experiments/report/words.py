"""The results in words, for readers without knowledge of bandits. Every claim follows from the numbers."""

import math
from typing import Any, cast

import polars as pl

from coterie.evaluation.verdict import FEW, FIRST_RUNS, can_show
from coterie.experiments.run.specs import KINDS, Spec, defaults
from coterie.experiments.study.compare import Comparison, PolicyResult
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


def _lead_world(first: PolicyResult, others: list[PolicyResult]) -> str:
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


def _pace(result: PolicyResult) -> str:
    early, late = result.over("early_loss").mean, result.over("late_loss").mean
    return f"lost {early:.3f} per round in the first fifth of the rounds and {late:.3f} in the last."


def _paid(result: PolicyResult) -> str:
    if result.rate is None or result.rate.value != result.rate.value:
        return "kept no record, so nothing can be said about it."
    return f"was paid {result.rate.value:.4f} on average over {result.over('kept').mean:,.0f} kept records."


def _sharing(result: PolicyResult) -> str:
    users = result.over("neighbours").mean
    shared, taught = result.over("share_rate").mean, result.over("shared_with").mean
    text = f"It did not decide alone: on average {users:,.0f} users' experience went into a decision."
    if "gamma" not in defaults(result.spec.name):  # by design, a payoff updates one user
        return text
    if not shared >= 0.005:
        return text + " It was hardly ever sure enough to let one payoff teach several users."
    return text + f" And {shared:.0%} of the payoffs taught several users at once, {taught:,.0f} on average."


def _trouble(result: PolicyResult, best: PolicyResult, comparison: Comparison) -> str:
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


def setting(comparison: Comparison) -> str:
    """Return a description of the world and of a round."""
    plan = comparison.plan
    facts, world = plan.world.parameters(), cast(Any, plan.world)
    if plan.is_log:
        return (
            f"{_provenance(world)}The rounds come from a log ({plan.name}). In each, a user comes, and the program "
            f"is offered what the log showed that user, among {world.n_candidates - 1} other items. The log tells "
            "only what the shown item paid, so a round counts only if the program picks that very item. What "
            "matters in the end is the average payoff of the rounds that count."
            + "".join(f" {note}" for note in world.notes)
        )
    if hasattr(world, "about"):
        return str(world.about)
    if hasattr(world, "provenance"):
        return (
            f"{_provenance(world)}The rounds are drawn from what {world.n_users:,} users of {plan.name} are known "
            f"to like. In each, one of them is offered {world.n_candidates} items and likes at least one. An item "
            "pays 1 if the user likes it, and 0 if not."
        )
    items = f"{facts['n_items']} items" if "n_items" in facts else "items that are new every time"
    return (
        f"An invented world with {facts['n_users']} users and {items}, where we know what everybody likes. "
        f"In each round one user comes, the program sees {facts['n_candidates']} candidates and shows one of "
        f"them. It learns what that one paid, and never what the others would have paid. {_groups(facts)} "
        "The programs are told none of this."
    )


def _provenance(world: Any) -> str:
    """Return what kind of data these are, unless they are simply real data."""
    if world.provenance == "real":
        return ""
    return f"These data are {'a ' if 'twin' in world.provenance else ''}{world.provenance}. "


def _groups(facts: dict[str, int]) -> str:
    n_families, n_clusters = facts.get("n_families", 1), facts["clusters_per_family"]
    if n_families == 1:
        return f"The users fall into {n_clusters} groups, and within a group all like the same things."
    return (
        f"The items come in {n_families} families (think of music and news). For each family the users fall "
        f"into {n_clusters} groups, and within a group all like the same things. The groups for one family say "
        "nothing about those for another: two users may agree on music and disagree on news."
    )


def picture_words(comparison: Comparison) -> list[str]:
    """Return how to read the picture of neighbourhoods, and how well it matches the truth."""
    picture = comparison.picture
    if picture is None or comparison.pictured is None:
        return []
    title, n_others, user = comparison.pictured.title, picture["other"].n_unique(), picture["user"][0]
    text = (
        f"A row is one of {n_others} other users, a column is an item. A square is filled where the other user "
        f"counts as a neighbour of user {user} on that item. Shown is the half of the items on which {title} is "
        f"surest of what user {user} thinks; on the rest it cannot tell yet, and counts nearly everybody."
    )
    if picture["truth"].null_count():
        return [text]
    return [text + " Pale squares are mistakes: counted, but in truth not alike.", _match(picture, title)]


def _match(picture: pl.DataFrame, title: str) -> str:
    """Compare what was found with the truth."""
    right = int((picture["found"] & picture["truth"]).sum())
    found, real = int(picture["found"].sum()), int(picture["truth"].sum())
    if not found or not real:
        return f"{title} counts {found} neighbours here, the truth {real}."
    text = (
        f"{title} has found {right / real:.0%} of the true neighbours, and {right / found:.0%} of those it counts "
        f"are right; counting everybody, {real / len(picture):.0%} would be."
    )
    if picture["family"].n_unique() > 1:
        by_family = picture.group_by("other", "family").agg(pl.col("truth").any())
        kinds = by_family.group_by("other").agg(pl.col("truth").n_unique())
        n_mixed, n_others = int((kinds["truth"] > 1).sum()), len(kinds)
        text += f" In truth {n_mixed} of the {n_others} are alike on one family and not on another."
    return text
