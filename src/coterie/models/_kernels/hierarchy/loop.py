"""The compiled loop of `Hierarchical`: choose, compare with the log, learn, visit a few users."""

import math
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coterie.arrays import Floats, Ints
from coterie.models._kernels.given import given
from coterie.models._kernels.hierarchy import few_items
from coterie.models._kernels.hierarchy.arrays import DUE, FEW, LEARNED, ROWS, USED, Contexts, Model
from coterie.models._kernels.hierarchy.drift import OWN, Drift, decide_half_life, watch
from coterie.models._kernels.hierarchy.payoffs import within_reach
from coterie.models._kernels.hierarchy.population import learn, score, view_with
from coterie.models._kernels.hierarchy.posterior import Posterior, make_posterior, prepare
from coterie.models._kernels.hierarchy.visits import visit_due
from coterie.models._kernels.jit import at_once, jit
from coterie.models._kernels.probability import draw_from
from coterie.models._kernels.rounds import REFUSED
from coterie.models._kernels.rows import means as pair_table
from coterie.models._kernels.rows.dispatch import take
from coterie.models._kernels.rows.game import Game, join
from coterie.models.ranges import MOST_LEARNED


@given
class Hierarchy(NamedTuple):
    """All that `Hierarchical` learns."""

    few: Model  # over few items, used while it decides
    many: Model  # over features and items' effects
    deciding: Ints  # (1,) 1 while `few` decides
    pairs: pair_table.Table  # the payoffs of each pair of user and item
    ids: bool  # whether items have ids
    drift: Drift  # whether users' old payoffs mislead


@jit
def has_room(hierarchy: Hierarchy, n_items: int) -> bool:
    """Return whether there is room for one more user, item and pair."""
    few, many, deciding, pairs, ids, _ = hierarchy
    rows = many.place[ROWS] + 1
    if len(many.users.weight) < rows:
        return False
    if not ids:
        return True
    if len(few.users.weight) < rows or len(many.effects) < n_items + 1:
        return False
    if deciding[0] and few.prior.means.shape[1] < min(n_items + 1, FEW) + 1:
        return False
    return pair_table.fits(pairs, rows, pair_table.used(pairs) + 1)


@jit
def learn_one(hierarchy: Hierarchy, row: int, contexts: Contexts, position: int, payoff: float) -> None:
    """Learn a known user's payoff of the context at `position`, and visit a few users."""
    few, many, deciding, pairs, _, _ = hierarchy
    post = make_posterior(many)
    prepare(many, row, post)
    known = few_items.item_posterior(few, few.prior, pairs, row if deciding[0] else -1)
    learn_with(hierarchy, row, contexts, position, payoff, known, post)
    visit_both(hierarchy)


@jit
def learn_with(
    hierarchy: Hierarchy,
    row: int,
    contexts: Contexts,
    position: int,
    payoff: float,
    known: few_items.ItemPosterior,
    post: Posterior,
) -> None:
    """The same with the user's posteriors: `known` in `few`, used if it decides, and `post` in `many`."""
    few, many, deciding, pairs, ids, drift = hierarchy
    payoff = within_reach(many.paid, payoff, float(many.place[LEARNED]))
    item = contexts.numbers[position] if ids else -1
    if item >= FEW or item < 0:
        deciding[0] = 0
    own, features = 0.0, contexts.features[position]
    if deciding[0]:
        own = few_items.learn(few, pairs, row, item, payoff, known)
    error = learn(many, pairs, row, features, item, payoff, post)
    if ids:
        if many.keep[0] < 1.0:
            pair_table.fade(pairs, row, many.keep[0])
        if item >= 0:
            pair_table.update(pairs, row, contexts.numbers, position, payoff)
    if drift.sums.shape[2] > 0 and many.place[LEARNED] > 1:
        learned, users = float(many.place[LEARNED]), float(many.place[ROWS])
        keys, values = features_of(many, features, item, deciding[0] == 1)
        watch(drift, OWN, row, keys, values, own if deciding[0] else error, learned, users)
        if decide_half_life(drift, learned, users):
            half_life = drift.half_life[0]
            few.keep[0] = many.keep[0] = 2.0 ** (-1.0 / half_life) if half_life > 0.0 else 1.0


@jit
def features_of(
    many: Model, features: Floats, item: int, items_alone: bool
) -> tuple[NDArray[np.uint64], Floats]:
    """Return what a payoff is of, for `watch`: the constant, the features in units of their spread, and the item."""
    d = 1 if items_alone else many.place[USED]
    keys, values = np.zeros(d + (item >= 0), dtype=np.uint64), np.ones(d + (item >= 0))
    for i in range(1, d):
        keys[i] = np.uint64(i)
        spread = math.sqrt(many.seen[1, i] / max(many.place[LEARNED], 1))
        values[i] = (features[i - 1] - many.seen[0, i]) / spread if spread > 0.0 else 0.0
    if item >= 0:
        keys[d] = np.uint64(item) + np.uint64(1 << 32)
    return keys, values


@jit
def visit_both(hierarchy: Hierarchy) -> None:
    """Visit the users that are due in each model that learns."""
    if hierarchy.deciding[0]:
        visit_due(hierarchy.few, hierarchy.pairs)
    visit_due(hierarchy.many, hierarchy.pairs)


@jit
def add_row(hierarchy: Hierarchy) -> int:
    """Return a new user's row. There must be room."""
    row = hierarchy.many.place[ROWS]
    hierarchy.many.place[ROWS] += 1
    if hierarchy.ids:
        hierarchy.few.place[ROWS] += 1
        take(hierarchy.pairs)
    return int(row)


@at_once
def play(
    hierarchy: Hierarchy, game: Game, features: Floats, explore: float, floor: float, rng: Generator
) -> None:
    """Play rounds until a pass over the users ends. The items of `game` are numbers, `features` their features."""
    few, many, deciding, pairs, ids, _ = hierarchy
    rounds, people, numbers, named, so_far = game
    contexts = Contexts(features, numbers)
    n_candidates = rounds.candidates.shape[1]
    parts, value, chances = np.empty((n_candidates, 6)), np.empty(n_candidates), np.empty(n_candidates)
    post = make_posterior(many)
    known = few_items.item_posterior(
        few, few.prior, pairs, -1
    )  # recomputed in each round in which `few` decides
    for t in range(so_far[0], len(rounds.who)):
        if few.place[DUE] or many.place[DUE] or not has_room(hierarchy, named[0]):
            return
        so_far[0] = t + 1
        row, which = people.row[rounds.who[t]], rounds.candidates[t]
        if deciding[0]:
            known = few_items.item_posterior(few, few.prior, pairs, row)
            few_items.view_with(few.prior, known, few.place[USED], numbers, which, parts)
        else:
            prepare(many, row, post)
            view_with(many, pairs, row, contexts, which, parts, post)
        score(parts, explore, floor, value, chances)
        k = draw_from(chances, rng)
        rounds.choice[t] = k
        rounds.members[t] = many.place[ROWS] + (1 if row < 0 else 0)
        if rounds.served[t] >= 0 and rounds.served[t] != k:
            continue
        if not (abs(value[k]) <= MOST_LEARNED and parts[k, 4] <= MOST_LEARNED):
            rounds.updated[t] = REFUSED
            continue
        if row < 0:
            row = add_row(hierarchy)
            join(people, rounds.who[t], row)
        if ids:
            pair_table.name(pairs, numbers, which[k], named)
        payoff = rounds.payoffs[t, 0 if rounds.served[t] >= 0 else k]
        if deciding[0]:
            prepare(many, row, post)
        learn_with(hierarchy, row, contexts, which[k], payoff, known, post)
        visit_both(hierarchy)
        rounds.kept[t] = True
        rounds.updated[t] = 1
        so_far[1] += 1
