"""Texts of a report about the world and about the picture of neighbourhoods."""

from typing import Any, cast

import polars as pl

from coterie.experiments.study.compare import Comparison


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
            + "".join(f" {note}" for note in getattr(world, "notes", ()))
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
