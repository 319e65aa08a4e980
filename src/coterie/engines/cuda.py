"""Users' models on a GPU, through JAX; on its CPU build the same code runs slowly, for tests."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

from coterie.engines import device  # first: it says what to install if JAX is missing

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.arrays import Bools, Floats, Ints
from coterie.engines.device import Array, UserColumns, find_device, free_columns
from coterie.errors import ParameterError, UnavailableError
from coterie.models import Near, View
from coterie.models.actions import ActionsLike
from coterie.models.checks import check_count, read_vectors
from coterie.models.files import Tensors
from coterie.models.protocol import ROUNDING, Look
from coterie.models.users.user_rows import RowModels, UserRows

FEWEST, MOST = 16, 512  # candidates in one product; only powers of two, since each number is compiled once
PIECE = 4096  # users that are read or written at once
BESIDE = 1 / 8  # of the device's memory is left for the temporary arrays of decisions and shared updates


@final
class Cuda:
    """Keeps users' models in the memory of a GPU.

    device
        None for the first GPU, or as JAX names it: "cuda:1"; "cpu" computes in this process, slowly.
    block
        How many users memory is taken for at a time; a power of two. None for 2²⁰ on a GPU, 4.4 GB with 25 features,
        and 4,096 on a processor.
    most_users
        How many users there may be; None for as many as fit into 7/8 of what JAX takes of the device's memory.
    """

    def __init__(
        self, device: str | None = None, *, block: int | None = None, most_users: int | None = None
    ) -> None:
        if block is not None and (check_count("block", block) < 2 or block & (block - 1)):
            raise ParameterError(f"block is {block!r}, expected a power of two, such as 65536")
        self.most_users = None if most_users is None else check_count("most_users", most_users)
        self.device = find_device(device)
        self.block = block or (1 << 20 if self.device.platform == "gpu" else 4096)

    def models(self, n_features: int | None, one_hot: bool) -> "OnDevice":
        """Return empty models over vectors of `n_features`."""
        if one_hot or n_features is None:
            raise ParameterError(
                "Cuda keeps models over feature vectors, but one_hot is True; leave out `engine`: over item ids a "
                "decision does not grow with the number of users"
            )
        check_count("n_features", n_features)
        return OnDevice(UserBlocks(n_features, self.device, self.block, self.most_users))


@final
class OnDevice(RowModels):
    """Models on a device; `coterie.models.protocol` says what each call means. The host knows only users' rows."""

    def __init__(self, blocks: "UserBlocks") -> None:
        self.n_features = blocks.n_features
        self.blocks = blocks
        self._known = UserRows()

    def read(self, contexts: ActionsLike) -> Floats:
        return read_vectors(contexts, self.n_features)

    def view(self, user: Hashable, contexts: Floats) -> View:
        return View(*self.blocks.view(np.full(len(contexts), self._known.row(user)), contexts))

    def gather(self, user: Hashable, contexts: Floats, view: View, scale: float) -> Near:
        return self.look_many([user], [contexts], scale)[0].near

    def look_many(self, users: Sequence[Hashable], contexts: Sequence[Floats], scale: float) -> list[Look]:
        """Do what `view` and `gather` do for several users in one product, and wait for the device once."""
        counts = [len(rows) for rows in contexts]
        asking = np.repeat([self._known.row(user) for user in users], counts)
        found = self.blocks.look(asking, np.concatenate(contexts), scale, self._known.n_rows)
        answers = []
        for user, part in zip(users, np.split(found, np.cumsum(counts)[:-1], axis=1), strict=True):
            view = View(part[0], part[1])
            answers.append(Look(view, self._with_user(user, view, part[2:])))
        return answers

    def neighbours(self, user: Hashable, contexts: Floats, view: View, scale: float) -> list[Hashable]:
        return self._named(user, self.blocks.near(contexts[0], view, scale))

    # Changes. Room is made before anything is changed.

    def update(self, user: Hashable, context: Floats, payoff: float) -> int:
        row = self._known.row(user)
        if row < 0:
            row = self._known.n_rows
            self.blocks.reserve(row + 1)
        self.blocks.learn(row, context, payoff)
        if row == self._known.n_rows:
            self._known.give_row(user)
        return 1

    def share(
        self, user: Hashable, context: Floats, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        alone = self._known.lacks_row(user)
        self.blocks.reserve(self._known.n_rows + alone)
        learners = self.blocks.share(context, view, scale, limit, self._known.row(user), payoff)
        return learners + (self.update(user, context, payoff) if alone else 0)

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the gap."""
        row, last = self._known.drop(user), self._known.n_rows
        if row >= 0:
            self.blocks.move(last, row)

    # All users at once.

    def part(self, users: Sequence[Hashable]) -> Tensors:
        """Return some users as arrays, with a row for each updated user."""
        rows, names = self._known.pack(users)
        return {**names, **device.as_tensors(self.blocks.read(rows))}

    def put(self, part: Tensors) -> None:
        names, idle = self._known.unpack(part)
        columns = device.from_tensors(part, len(names), self.n_features)
        self.blocks.reserve(self._known.n_rows + len(names))
        self.blocks.write(self._known.n_rows, columns)
        self._known.put(names, idle)

    def tensors(self) -> Tensors:
        return self.part(self.users)

    def restore(self, tensors: Tensors) -> None:
        """Replace all users; for a moment there must be room for both."""
        fresh = OnDevice(self.blocks.like())
        fresh.put(tensors)
        self.blocks, self._known = fresh.blocks, fresh._known


@final
class UserBlocks:
    """Models by row, in blocks of `size` users, for at most `most` users, if given.

    A new block is added when all are full. This copies and compiles nothing, so growth causes no pause.
    """

    def __init__(self, n_features: int, device: Any, size: int, most: int | None = None) -> None:
        self.n_features, self.device, self.size, self.most = n_features, device, size, most
        self._blocks: list[UserColumns] = []

    def like(self) -> "UserBlocks":
        """Return blocks of the same kind, without users."""
        return UserBlocks(self.n_features, self.device, self.size, self.most)

    @property
    def room(self) -> int:
        """How many users there is room for."""
        return self.size * len(self._blocks)

    @property
    def user_bytes(self) -> int:
        """How many bytes one user takes."""
        return 12 * (self.n_features * (self.n_features + 3) // 2)

    def wait(self) -> None:
        """Wait until the device has done all calls."""
        ready(self._blocks)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Compute in float64; raise UnavailableError if JAX reports that the device's memory is full."""
        try:
            with jax.enable_x64(True):
                yield
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise self._full() from error

    def _full(self) -> UnavailableError:
        return UnavailableError(
            f"no room for more than {self.room if self.most is None else self.most:,} users of "
            f"{self.n_features} features on {self.device}, at {self.user_bytes:,} bytes per user; nothing was "
            "changed; drop users, or take a device with more memory"
        )

    def reserve(self, rows: int) -> None:
        """Make room for this many users; if there is none, raise UnavailableError and change nothing."""
        if self.most is not None and rows > self.most:
            raise self._full()
        made: list[UserColumns] = []
        with self._computing(), jax.default_device(self.device):
            while self.room + self.size * len(made) < rows:
                stats = self.device.memory_stats() or {}
                limit = stats.get("bytes_limit")
                if limit and stats["bytes_in_use"] + self.size * self.user_bytes > (1 - BESIDE) * limit:
                    raise self._full()
                made.append(ready(jax.device_put(free_columns((), self.n_features, self.size), self.device)))
        self._blocks += made

    def view(self, rows: Ints, contexts: Floats) -> Floats:
        """Return own estimates and spreads (2, candidates); `rows` has each candidate's user, or -1 without a row."""
        with self._computing():
            found = [np.asarray(views)[:, :n] for n, *_, views in self._candidates(rows, contexts)]
            return np.concatenate(found, axis=1)

    def look(self, rows: Ints, contexts: Floats, scale: float, used: int) -> Floats:
        """Return views, and the sums over neighbours among the rows before `used`, for each candidate.

        (5, candidates): own estimates and spreads, then members, estimates, spreads.
        """
        blocks, found = list(enumerate(self._blocks[: -(-used // self.size)])), []
        with self._computing():
            # With one block, its own call also finds the views.
            for n, who, x, views in self._candidates(rows, contexts, seen=len(blocks) > 1):
                parts = [
                    _gather(block, np.int32(k * self.size), who, x, views, np.float64(scale))
                    for k, block in blocks
                ]
                if not parts:
                    parts = [np.concatenate([views, np.zeros((3, len(x)))])]
                first, *others = (np.array(part)[:, :n] for part in parts)
                first[2:] += sum(other[2:] for other in others)
                found.append(first)
        return np.concatenate(found, axis=1)

    def _candidates(
        self, rows: Ints, contexts: Floats, seen: bool = True
    ) -> Iterator[tuple[int, Array, Array, Array]]:
        """Yield candidates, some at a time: how many, and on the device their users' rows, contexts and views.

        Without `seen`, the views are those of users without a row.
        """
        for start in range(0, len(contexts), MOST):
            n = min(MOST, len(contexts) - start)
            width = _power(n, FEWEST)
            x, who = np.zeros((width, self.n_features)), np.full(width, -1, dtype=np.int32)
            x[:n], who[:n] = contexts[start : start + n], rows[start : start + n]
            numbers = np.unique(who[who >= 0] // self.size).tolist() if seen else ()
            strangers = np.stack([np.zeros(width), np.sqrt(np.einsum("kf,kf->k", x, x))])
            who, x, views = jax.device_put((who, x, strangers), self.device)
            for k in numbers:
                views = _see(self._blocks[k], np.int32(k * self.size), who, x, views)
            yield n, who, x, views

    def near(self, context: Floats, view: View, scale: float) -> Bools:
        """Return which rows are near: (room,)."""
        with self._computing():
            found = [np.asarray(one) for one, _ in self._find(context, view, scale, np.inf, -1)]
            return np.concatenate([np.zeros(0, dtype=np.bool_), *found])

    def share(self, context: Floats, view: View, scale: float, limit: float, own: int, payoff: float) -> int:
        """Update the neighbours with a bound below `limit`, and the row `own` if it is not -1; return how many.

        They are found in all blocks before the first block changes.
        """
        with self._computing():
            found = ready(self._find(context, view, scale, limit, own))  # raises if there is no memory
            for number, (learns, v) in enumerate(found):
                self._blocks[number] = _share(self._blocks[number], learns, v, context, np.float64(payoff))
            return sum(int(learns.sum()) for learns, _ in found)

    def _find(
        self, context: Floats, view: View, scale: float, limit: float, own: int
    ) -> list[tuple[Array, Array]]:
        """Return for each block which users learn, and M⁻¹x of all."""
        asked = np.array([view.estimate[0], scale * view.spread[0] + ROUNDING, scale, limit])
        return [
            _find(block, context, asked, np.int32(own - number * self.size))
            for number, block in enumerate(self._blocks)
        ]

    def learn(self, row: int, context: Floats, payoff: float) -> None:
        """Update one user."""
        with self._computing():
            number, place = divmod(row, self.size)
            # Reading and writing in one call would copy the block.
            made = _learned(self._blocks[number], np.array([place]), context, np.float64(payoff))
            self._blocks[number] = _write(self._blocks[number], made, np.int32(place))

    def move(self, source: int, target: int) -> None:
        """Put a row in the place of another one, and free its own place."""
        if source != target:
            self.write(target, self.read(np.array([source])))
        with self._computing():
            self.write(source, free_columns((), self.n_features, 1))

    def read(self, rows: Ints) -> UserColumns:
        """Return some users, one column each."""
        numbers, places = np.divmod(rows, self.size)
        with self._computing():
            found: UserColumns = free_columns((), self.n_features, len(rows)).map(np.array)
            for number in np.unique(numbers).tolist():
                here = np.flatnonzero(numbers == number)
                for start in range(0, len(here), PIECE):
                    some = here[start : start + PIECE]
                    asked = np.zeros(_power(len(some), 1), dtype=np.int32)
                    asked[: len(some)] = places[some]
                    for array, part in zip(found, _read(self._blocks[number], asked), strict=True):
                        array[:, some] = np.asarray(part)[:, : len(some)]
            return found

    def write(self, first: int, columns: UserColumns) -> None:
        """Write users into free rows from `first` on, in pieces whose lengths are powers of two."""
        start, count = 0, columns.weights.shape[1]
        with self._computing():
            while start < count:
                number, place = divmod(first + start, self.size)
                most = min(count - start, self.size - place, PIECE)
                last = start + (1 << most.bit_length() - 1)
                here = slice(start, last)
                piece = (
                    columns if last - start == count else UserColumns(*(part[:, here] for part in columns))
                )
                self._blocks[number] = _write(self._blocks[number], piece, np.int32(place))
                start = last


@jax.jit
def _see(block: UserColumns, first: Array, rows: Array, x: Array, views: Array) -> Array:
    """Return views, with those of the users of a block, whose rows are those from `first` on."""
    here = (first <= rows) & (rows < first + block.weights.shape[1])
    place = jnp.where(here, rows - first, 0)
    own = device.view(block.inverses[:, place].T, block.weights[:, place].T, x[:, None])
    return jnp.where(here, jnp.stack(own)[..., 0], views)


@jax.jit
def _gather(block: UserColumns, first: Array, rows: Array, x: Array, views: Array, scale: Array) -> Array:
    """Return the views of `_see`, and the sums over a block's neighbours: (5, candidates)."""
    views = _see(block, first, rows, x, views)
    sums, _ = device.look(block, x, views[0], views[1], jnp.broadcast_to(scale, len(x)))
    return jnp.concatenate([views, sums])


@jax.jit
def _find(block: UserColumns, x: Array, asked: Array, own: Array) -> tuple[Array, Array]:
    """Return which users learn together: neighbours with a bound below the limit, and the row `own`; and M⁻¹x."""
    estimate, reach, scale, limit = asked
    v = device.pull(block.inverses, x)
    bound = scale * jnp.sqrt(jnp.maximum(x @ v, 0.0))
    near = jnp.abs(estimate - x @ block.weights) <= reach + bound
    return (near & (bound < limit)) | (lax.iota(jnp.int32, len(near)) == own), v


@jax.jit
def _share(block: UserColumns, learns: Array, v: Array, x: Array, payoff: Array) -> UserColumns:
    """Return a block in which some users are updated; the others keep every bit. It is in new memory."""
    made = device.updated(block, x[:, None], payoff, v)
    return UserColumns(*(jnp.where(learns, new, old) for new, old in zip(made, block, strict=True)))


@jax.jit
def _learned(block: UserColumns, rows: Array, x: Array, payoff: Array) -> UserColumns:
    return device.updated(_read(block, rows), x[:, None], payoff)


@jax.jit
def _read(block: UserColumns, rows: Array) -> UserColumns:
    return block.map(lambda part: part[:, rows])


@partial(jax.jit, donate_argnums=0)
def _write(block: UserColumns, some: UserColumns, first: Array) -> UserColumns:
    return UserColumns(
        *(lax.dynamic_update_slice_in_dim(a, b, first, 1) for a, b in zip(block, some, strict=True))
    )


def ready(arrays: Any) -> Any:
    """Wait for arrays, and return them."""
    return jax.block_until_ready(arrays)  # type: ignore[no-untyped-call]


def _power(count: int, least: int) -> int:
    """Return the smallest power of two that is neither below `count` nor below `least`."""
    return max(least, 1 << (count - 1).bit_length())
