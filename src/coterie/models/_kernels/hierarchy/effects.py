"""The loops of the sparse hierarchical model: a table of effects, found by their keys.

An effect is what one feature, or one cross of features, adds to the payoff. Each has a Gaussian posterior: what the
payoffs say of it is kept apart from the prior, as a precision and a pull, so that another prior variance v₀
re-weights all that was learned:

    v = 1 / (1/v₀ + precision)        w = pull · v

Effects stand in the order of their first sight; `lookup` finds them by key (open addressing, linear probing).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.models._kernels.jit import jit

Hashes = NDArray[np.uint64]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Hash = Any  # numpy.uint64, whose arithmetic NumPy's types do not follow


class Columns(NamedTuple):
    """What `set_aside` copies of the effects: the columns of `Table` that a snapshot holds."""

    keys: Hashes
    kinds: NDArray[np.uint8]
    owners: NDArray[np.int32]
    nexts: NDArray[np.int32]
    touched: Indices
    precision: Floats
    pull: Floats
    free: NDArray[np.int32]


class Table(NamedTuple):
    """The effects, one element an effect but for `lookup`, `counts` and `marks`."""

    lookup: NDArray[np.int32]  # (a power of two,) 1 + the place of an effect, or 0
    keys: Hashes  # (slots,)
    kinds: NDArray[np.uint8]  # (slots,) 0 is a free place
    owners: NDArray[np.int32]  # (slots,) where the user's own effect stands, for effects of one user; else -1
    nexts: NDArray[np.int32]  # (slots,) the next effect of the same user; -1 ends the chain
    touched: Indices  # (slots,) which payoff changed it last, counted from 1
    precision: Floats  # (slots,)
    pull: Floats  # (slots,)
    free: NDArray[np.int32]  # (slots,) a stack of places given back
    counts: Indices  # see USED
    marks: NDArray[np.uint8]  # (pieces,) see CHANGED
    aside: Columns  # pieces as they were when a copy of all began; (0,) before the first


class Shown(NamedTuple):
    """Candidates as hashes of names and numbers. A candidate's features stand from starts[k] to starts[k + 1]."""

    around: Hashes  # the context's features …
    weights: Floats  # … and their values
    starts: Indices  # (candidates + 1,)
    names: Hashes  # the actions' features, the id first …
    sizes: Floats  # … and their values
    named: NDArray[np.bool_]  # (candidates,) whether the first feature is an id


class Scratch(NamedTuple):
    """Room for the effects of one candidate."""

    keys: Hashes
    values: Floats
    kinds: NDArray[np.uint8]
    places: Indices  # (room, 2)


class Rounds(NamedTuple):
    """Many rounds: who, among what, what it pays, and room for what is done."""

    users: Indices  # positions in `numbers`
    numbers: Indices  # of the users, -1 for strangers, who get the next one with their first payoff
    upcoming: Indices  # (1,) the next number
    candidates: Indices  # (rounds, candidates)
    payoffs: Floats  # (rounds, candidates), or (rounds, 1) where only what was served is known
    served: Indices  # -1 where all payoffs are known
    draws: Floats  # uniform in [0, 1)
    choice: Indices
    kept: NDArray[np.bool_]


# Kinds of effects. 0 is a free place of the table.
POPULATION, USER, ID, FEATURE = 1, 2, 3, 4
CONTEXT_ID, CONTEXT_FEATURE = 5, 6
USER_ID, USER_FEATURE, USER_CONTEXT_ID = 7, 8, 9
KINDS = 10

# Columns of `figures`, one row a kind.
VARIANCE, SQUARES, FREEDOM, LENGTH, TIMES = 0, 1, 2, 3, 4
# Places of `counts`.
USED, FREED, CURSOR, REFIT = 0, 1, 2, 3
# What a piece of the table is: different from the last copy that was kept, still to be copied, or set aside because
# it changed first. A piece is PIECE effects that stand together, and the elements of `free` with the same places.
CHANGED, WANTED, ASIDE = 1, 2, 4
PIECE = 1 << 11
# Places of `noise`.
NOISE, NOISE_SUM, NOISE_TIMES = 0, 1, 2

START = 0.03  # the prior variance of a whole kind's part of the payoff, before anything is learned
START_NOISE = 0.1
WEAK = 20.0  # observations that these starting values count for
LEAST_NOISE = 1e-3
GROWTH = 1.05  # the variances are fitted again when there are so many times as many payoffs
MEMORY = 0.9  # how much of the residuals' sum is kept at each fit: the noise falls as the model learns
VISITS = 8  # effects looked at for the next fit, for each effect that a payoff touches
SAMPLE = 8  # effects among which the one untouched for longest makes room in a full table
CROSSED = 16  # with more context features than this, a user has no effects of context and action together

NOBODY = -1
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SALT = np.uint64(0xD1B54A32D192ED03)
ONE = np.uint64(1)


@jit
def mix(z: Hash) -> Hash:
    """Return SplitMix64's finaliser of z."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def user_key(user: int) -> Hash:
    """Return the key of a user's own effect; every other key of the user is made from it."""
    return mix(np.uint64(user) * GOLDEN + np.uint64(USER))


@jit
def single(kind: int, name: Hash) -> Hash:
    """Return the key of a feature's own effect."""
    return mix(name * GOLDEN + np.uint64(kind))


@jit
def cross(kind: int, one: Hash, other: Hash) -> Hash:
    """Return the key of a cross."""
    return mix(mix(one * GOLDEN + np.uint64(kind)) * SALT + other)


@jit
def make_scratch(shown: Shown) -> Scratch:
    """Return room for the effects of the largest candidate; each call has its own, so that threads may read."""
    most = 0
    for k in range(shown.named.shape[0]):
        most = max(most, shown.starts[k + 1] - shown.starts[k])
    around = shown.around.shape[0]
    room = 2 + around + most * (2 + around)
    return Scratch(
        np.empty(room, dtype=np.uint64),
        np.empty(room),
        np.empty(room, dtype=np.uint8),
        np.empty((room, 2), dtype=np.int64),
    )


@jit
def spell(shown: Shown, k: int, user: int, scratch: Scratch) -> int:
    """Write all effects of candidate k for a user, and return how many.

    `places` gets the positions of the action's and of the context's feature in `shown`, -1 for none.
    """
    keys, values, kinds, places = scratch
    around, weights, starts, names, sizes, named = shown
    own = user_key(user)
    n_around = around.shape[0]
    keys[0], values[0], kinds[0] = single(POPULATION, np.uint64(0)), 1.0, POPULATION
    keys[1], values[1], kinds[1] = own, 1.0, USER
    places[0, 0] = places[0, 1] = places[1, 0] = places[1, 1] = -1
    m = 2
    for a in range(starts[k], starts[k + 1]):
        is_id = named[k] and a == starts[k]
        name, x = names[a], sizes[a]
        kind = ID if is_id else FEATURE
        keys[m], values[m], kinds[m] = single(kind, name), x, kind
        places[m, 0], places[m, 1] = a, -1
        m += 1
        kind = USER_ID if is_id else USER_FEATURE
        keys[m], values[m], kinds[m] = cross(kind, own, name), x, kind
        places[m, 0], places[m, 1] = a, -1
        m += 1
        kind = CONTEXT_ID if is_id else CONTEXT_FEATURE
        for c in range(n_around):
            keys[m], values[m], kinds[m] = cross(kind, around[c], name), x * weights[c], kind
            places[m, 0], places[m, 1] = a, c
            m += 1
        if is_id and n_around <= CROSSED:
            personal = cross(USER_CONTEXT_ID, own, name)
            for c in range(n_around):
                keys[m] = cross(USER_CONTEXT_ID, personal, around[c])
                values[m], kinds[m] = x * weights[c], USER_CONTEXT_ID
                places[m, 0], places[m, 1] = a, c
                m += 1
    return m


@jit
def find(table: Table, key: Hash) -> int:
    """Return where an effect stands, -1 if it was never seen."""
    last = np.uint64(table.lookup.shape[0] - 1)
    i = key & last
    while table.lookup[i]:
        e = int(table.lookup[i]) - 1
        if table.keys[e] == key:
            return e
        i = (i + ONE) & last
    return -1


@jit
def parts(table: Table, figures: Floats, shown: Shown, user: int, found: Floats) -> None:
    """Fill `found`, a row a candidate, with the sum of w·x for each kind; column 0 gets the sum of v·x²."""
    add_parts(table, figures, shown, user, make_scratch(shown), found)


@jit
def add_parts(
    table: Table, figures: Floats, shown: Shown, user: int, scratch: Scratch, found: Floats
) -> None:
    """Do what `parts` does, in room that is there already."""
    keys, values, kinds, _ = scratch
    for k in range(found.shape[0]):
        m = spell(shown, k, user, scratch)
        found[k, :] = 0.0
        for j in range(m):
            kind, x = kinds[j], values[j]
            v = figures[kind, VARIANCE]
            e = find(table, keys[j])
            if e >= 0:
                v = 1.0 / (1.0 / v + table.precision[e])
                found[k, kind] += table.pull[e] * v * x
            found[k, 0] += v * x * x


@jit
def gaps(score: Floats, gamma: float, floor: float, chances: Floats) -> int:
    """Fill in how likely each candidate is: 1/(candidates + γ·gap), the rest to the best, all above a floor.

    Returns the best: the first whose score is within 1e-9 of the highest.
    """
    n = score.shape[0]
    best, highest = 0, score.max()
    while highest - score[best] >= 1e-9:
        best += 1
    left = 1.0
    for k in range(n):
        if k != best:
            # An infinite γ is greedy: it leaves the others nothing, tied or not.
            chances[k] = 0.0 if np.isinf(gamma) else 1.0 / (n + gamma * max(highest - score[k], 0.0))
            left -= chances[k]
    chances[best] = left
    for k in range(n):
        chances[k] = (1.0 - floor) * chances[k] + floor / n
    return best


@jit
def weigh(
    table: Table,
    figures: Floats,
    shown: Shown,
    user: int,
    settings: tuple[float, float, float],
    told: Floats,
) -> None:
    """Fill `told` (see TOLD), a column a candidate; `settings` are explore, γ and the floor."""
    explore, gamma, floor = settings
    n = told.shape[1]
    found = np.empty((n, KINDS))
    parts(table, figures, shown, user, found)
    for k in range(n):
        row = found[k]
        told[2, k] = row[POPULATION]
        told[3, k] = row[ID] + row[FEATURE]
        told[4, k] = row[CONTEXT_ID] + row[CONTEXT_FEATURE]
        told[5, k] = row[USER] + row[USER_ID] + row[USER_FEATURE] + row[USER_CONTEXT_ID]
        told[0, k] = row[1:].sum()
        told[1, k] = explore * np.sqrt(row[0])
        told[6, k] = told[0, k] + told[1, k]
    gaps(told[6], gamma, floor, told[7])


@jit
def pick(chances: Floats, draw: float) -> int:
    """Return the candidate at a uniform number in [0, 1)."""
    reached = 0.0
    for k in range(chances.shape[0] - 1):
        reached += chances[k]
        if draw < reached:
            return k
    return int(chances.shape[0]) - 1


@jit
def touch(table: Table, e: int) -> None:
    """Say that place e changes now: its piece is set aside first if a copy under way has yet to take it."""
    p = e // PIECE
    mark = table.marks[p]
    if not mark & CHANGED:
        if mark & WANTED:
            set_aside(table, p)
        table.marks[p] |= CHANGED


@jit
def set_aside(table: Table, p: int) -> None:
    """Keep a piece as it is now."""
    first, end = p * PIECE, min((p + 1) * PIECE, table.keys.shape[0])
    aside = table.aside
    aside.keys[first:end] = table.keys[first:end]
    aside.kinds[first:end] = table.kinds[first:end]
    aside.owners[first:end] = table.owners[first:end]
    aside.nexts[first:end] = table.nexts[first:end]
    aside.touched[first:end] = table.touched[first:end]
    aside.precision[first:end] = table.precision[first:end]
    aside.pull[first:end] = table.pull[first:end]
    aside.free[first:end] = table.free[first:end]
    table.marks[p] |= ASIDE


@jit
def remove(table: Table, e: int) -> None:
    """Take one effect out of the index and clear it; the places behind it move up, so that nothing is lost."""
    touch(table, e)
    last = np.uint64(table.lookup.shape[0] - 1)
    i = table.keys[e] & last
    while table.lookup[i] != e + 1:
        i = (i + ONE) & last
    hole, i = i, (i + ONE) & last
    while table.lookup[i]:
        home = table.keys[table.lookup[i] - 1] & last
        if ((i - home) & last) >= ((i - hole) & last):
            table.lookup[hole], hole = table.lookup[i], i
        i = (i + ONE) & last
    table.lookup[hole] = 0
    table.keys[e] = 0
    table.kinds[e] = 0
    table.owners[e] = NOBODY
    table.nexts[e] = NOBODY
    table.touched[e] = 0
    table.precision[e] = 0.0
    table.pull[e] = 0.0


@jit
def release(table: Table, e: int) -> None:
    """Clear one effect and keep its place for another."""
    remove(table, e)
    touch(table, table.counts[FREED])
    table.free[table.counts[FREED]] = e
    table.counts[FREED] += 1


@jit
def forget(table: Table, head: int) -> int:
    """Clear all effects of a user, whose own effect stands at `head`. Returns how many."""
    e, n = head, 0
    while e != NOBODY:
        after = table.nexts[e]
        release(table, e)
        e, n = after, n + 1
    return n


@jit
def forget_user(table: Table, user: int) -> int:
    """Clear all effects of the user with this number, and return how many there were."""
    head = find(table, user_key(user))
    return forget(table, head) if head >= 0 else 0


@jit
def make_room(table: Table, key: Hash, now: int) -> bool:
    """Free a place in a full table, and return whether there is one now.

    Of a few effects the one untouched for longest goes; a user's own effect goes with all of that user. What this
    payoff touches never goes.
    """
    oldest, when = -1, now
    n = np.uint64(table.keys.shape[0])
    for i in range(SAMPLE):
        e: Any = np.int64(mix(key + np.uint64(i)) % n)  # signed: Numba takes a mixture of both for a float
        if table.touched[e] < when:
            oldest, when = e, table.touched[e]
    if oldest < 0:
        return False
    owner = table.owners[oldest]
    if owner == oldest:
        forget(table, oldest)
        return True
    if owner != NOBODY:
        before = owner
        while table.nexts[before] != oldest:
            before = table.nexts[before]
        touch(table, before)
        table.nexts[before] = table.nexts[oldest]
    release(table, oldest)
    return True


@jit
def place(table: Table, key: Hash, kind: int, head: int, now: int) -> int:
    """Return where an effect stands, making a place for it on first sight; -1 where none can be made.

    `head` is where the own effect of the user stands, for effects of one user.
    """
    e = find(table, key)
    if e >= 0:
        return e
    counts = table.counts
    if counts[FREED] == 0 and counts[USED] == table.keys.shape[0] and not make_room(table, key, now):
        return -1
    if counts[FREED]:
        counts[FREED] -= 1
        touch(table, counts[FREED])
        e = int(table.free[counts[FREED]])
    else:
        e = counts[USED]
        counts[USED] += 1
    touch(table, e)
    last = np.uint64(table.lookup.shape[0] - 1)
    i = key & last
    while table.lookup[i]:
        i = (i + ONE) & last
    table.lookup[i] = e + 1
    table.keys[e] = key
    table.kinds[e] = kind
    table.owners[e] = NOBODY
    table.nexts[e] = NOBODY
    if kind == USER:
        table.owners[e] = e
    elif kind >= USER_ID:
        touch(table, head)
        table.owners[e] = head
        table.nexts[e] = table.nexts[head]
        table.nexts[head] = e
    return e


@jit
def learn(
    table: Table,
    figures: Floats,
    noise: Floats,
    shown: Shown,
    user: int,
    payoff: float,
    now: int,
) -> None:
    """Take one payoff for the first candidate of `shown` into its effects; `now` counts payoffs from 1."""
    learn_in(table, figures, noise, shown, user, payoff, now, make_scratch(shown))


@jit
def learn_in(
    table: Table,
    figures: Floats,
    noise: Floats,
    shown: Shown,
    user: int,
    payoff: float,
    now: int,
    scratch: Scratch,
) -> None:
    """Do what `learn` does, in room that is there already."""
    keys, values, kinds, places = scratch
    m = spell(shown, 0, user, scratch)
    measure(figures, scratch, m)
    head, kept = -1, 0
    for j in range(m):
        e = -1 if kinds[j] >= USER_ID and head < 0 else place(table, keys[j], kinds[j], head, now)
        if kinds[j] == USER:
            head = e
        if e >= 0:
            touch(table, e)
            table.touched[e] = now
            places[kept, 0], values[kept], kinds[kept] = e, values[j], kinds[j]
            kept += 1
    estimate, spread = 0.0, 0.0
    for j in range(kept):
        e, x = places[j, 0], values[j]
        v = 1.0 / (1.0 / figures[kinds[j], VARIANCE] + table.precision[e])
        estimate += table.pull[e] * v * x
        spread += v * x * x
    total, error = spread + noise[NOISE], payoff - estimate
    for j in range(kept):
        e, x = places[j, 0], values[j]
        v = 1.0 / (1.0 / figures[kinds[j], VARIANCE] + table.precision[e])
        # To this effect all the others, as uncertain as they are, belong to the noise.
        others = max(total - v * x * x, noise[NOISE])
        table.pull[e] += x * (error + table.pull[e] * v * x) / others
        table.precision[e] += x * x / others
    after = error * noise[NOISE] / total
    noise[NOISE_SUM] += after * after + spread * noise[NOISE] / total
    noise[NOISE_TIMES] += 1.0
    visit(table, figures, VISITS * m)
    if table.counts[CURSOR] >= table.counts[USED] and now >= table.counts[REFIT] * GROWTH:
        refit(table, figures, noise, now)


@jit
def measure(figures: Floats, scratch: Scratch, m: int) -> None:
    """Note how long each kind's part of this context is; a kind starts from a variance that fits its length."""
    squares, often = np.zeros(KINDS), np.zeros(KINDS)
    for j in range(m):
        squares[scratch.kinds[j]] += scratch.values[j] * scratch.values[j]
        often[scratch.kinds[j]] += 1.0
    for kind in range(1, KINDS):
        if squares[kind] > 0:
            # Many effects together explain more than one: START grows with the root of their number.
            length = squares[kind] / np.sqrt(often[kind])
            if figures[kind, TIMES] == 0.0:
                figures[kind, VARIANCE] = START / length
            figures[kind, LENGTH] += length
            figures[kind, TIMES] += 1.0


@jit
def visit(table: Table, figures: Floats, most: int) -> None:
    """Look at the next effects for the coming fit: never at the whole table in one call."""
    cursor = table.counts[CURSOR]
    end = min(table.counts[USED], cursor + most)
    for e in range(cursor, end):
        kind = table.kinds[e]
        if kind:
            v0 = figures[kind, VARIANCE]
            v = 1.0 / (1.0 / v0 + table.precision[e])
            w = table.pull[e] * v
            figures[kind, SQUARES] += w * w
            figures[kind, FREEDOM] += 1.0 - v / v0
    table.counts[CURSOR] = end


@jit
def refit(table: Table, figures: Floats, noise: Floats, now: int) -> None:
    """Fit the variances: v₀ ← Σw²/Σ(1 − v/v₀), each sum with a weak prior (MacKay 1992).

    EM's v₀ ← mean of w² + v has the same fixed point, and takes many more steps.
    """
    for kind in range(1, KINDS):
        if figures[kind, TIMES] > 0:
            start = START * figures[kind, TIMES] / figures[kind, LENGTH]
            squares, freedom = WEAK * start + figures[kind, SQUARES], WEAK + figures[kind, FREEDOM]
            figures[kind, VARIANCE] = squares / freedom
        figures[kind, SQUARES] = figures[kind, FREEDOM] = 0.0
    noise[NOISE] = max(noise[NOISE_SUM] / noise[NOISE_TIMES], LEAST_NOISE)
    noise[NOISE_SUM] *= MEMORY
    noise[NOISE_TIMES] *= MEMORY
    table.counts[CURSOR] = 0
    table.counts[REFIT] = now


@jit
def largest(
    table: Table,
    figures: Floats,
    shown: Shown,
    k: int,
    user: int,
    kept: Indices,
    worth: Floats,
) -> int:
    """Fill `kept` (kind, action's feature, context's feature) and `worth` with the largest |w·x| of candidate k.

    Returns how many there are: effects that were never learned are worth nothing, and left out.
    """
    scratch = make_scratch(shown)
    keys, values, kinds, places = scratch
    m = spell(shown, k, user, scratch)
    n = 0
    for j in range(m):
        e = find(table, keys[j])
        if e < 0:
            continue
        value = table.pull[e] / (1.0 / figures[kinds[j], VARIANCE] + table.precision[e]) * values[j]
        i = n if n < worth.shape[0] else n - 1
        if value == 0.0 or (i < n and abs(value) <= abs(worth[i])):
            continue
        while i > 0 and abs(worth[i - 1]) < abs(value):
            worth[i] = worth[i - 1]
            kept[i, :] = kept[i - 1, :]
            i -= 1
        worth[i] = value
        kept[i, 0], kept[i, 1], kept[i, 2] = kinds[j], places[j, 0], places[j, 1]
        n = min(n + 1, worth.shape[0])
    return n


@jit
def rebuild(table: Table) -> bool:
    """Write the index anew; returns whether all keys differ."""
    last = np.uint64(table.lookup.shape[0] - 1)
    for e in range(table.counts[USED]):
        if not table.kinds[e]:
            continue
        i = table.keys[e] & last
        while table.lookup[i]:
            if table.keys[table.lookup[i] - 1] == table.keys[e]:
                return False
            i = (i + ONE) & last
        table.lookup[i] = e + 1
    return True


@jit
def play(
    table: Table,
    figures: Floats,
    noise: Floats,
    shown: Shown,
    rounds: Rounds,
    settings: tuple[float, float, float],
    now: int,
) -> int:
    """Play many rounds without a context: decide, then learn what is kept. Returns how many payoffs were learned."""
    users, numbers, upcoming, candidates, payoffs, served, draws, choice, kept = rounds
    explore, gap, floor = settings
    around, weights, starts, names, sizes, named = shown
    n = candidates.shape[1]
    scratch = make_scratch(shown)
    found = np.empty((1, KINDS))
    score, chances = np.empty(n), np.empty(n)
    before = now
    for t in range(users.shape[0]):
        user = users[t]
        for i in range(n):
            row = candidates[t, i]
            one = Shown(around, weights, starts[row : row + 2], names, sizes, named[row : row + 1])
            add_parts(table, figures, one, numbers[user], scratch, found)
            score[i] = found[0, 1:].sum() + explore * np.sqrt(found[0, 0])
        gaps(score, gap * np.sqrt(now + 1.0), floor, chances)
        k = pick(chances, draws[t])
        choice[t] = k
        if served[t] >= 0 and served[t] != k:
            continue
        kept[t] = True
        if numbers[user] < 0:
            numbers[user] = upcoming[0]
            upcoming[0] += 1
        row = candidates[t, k]
        one = Shown(around, weights, starts[row : row + 2], names, sizes, named[row : row + 1])
        now += 1
        payoff = payoffs[t, k] if served[t] < 0 else payoffs[t, 0]
        learn_in(table, figures, noise, one, numbers[user], payoff, now, scratch)
    return now - before
