"""Users' models on a device, in blocks of a fixed number of users. A user is known by the number of its row.

A new block is added when all are full. This copies and compiles nothing, so growth causes no pause.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, final

import jax
import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.engines.device import fused, kernels
from coterie.engines.device.kernels import Block
from coterie.errors import ParameterError, UnavailableError

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

MOST_COLUMNS = 512  # candidates in one product
FEW_COLUMNS = 16
PIECE = 4096  # users that are read or written at once
BESIDE = 1 / 8  # of the device's memory is left for the temporary arrays of decisions and shared updates


class Question(NamedTuple):
    """One user's candidates."""

    row: int  # of the user, or -1 without one
    contexts: Floats  # (candidates, features)
    view: Floats  # (2, candidates): estimates and spreads of a user without a row


class Asked(NamedTuple):
    """A search for neighbours: the users j with |estimate − wⱼ·x| ≤ reach + scale·spreadⱼ."""

    contexts: Floats  # (candidates, features)
    estimate: Floats  # (candidates,)
    reach: Floats  # (candidates,)
    scale: float


def on_device(
    method: Callable[Concatenate["Blocks", Given], Answer],
) -> Callable[Concatenate["Blocks", Given], Answer]:
    """Make a method compute in float64, and raise UnavailableError when the device's memory is full."""

    def wrapped(self: "Blocks", /, *given: Given.args, **named: Given.kwargs) -> Answer:
        with jax.enable_x64(True), told_when_full(self):
            return method(self, *given, **named)

    wrapped.__doc__ = method.__doc__
    return wrapped


@contextmanager
def told_when_full(blocks: "Blocks") -> Iterator[None]:
    """Raise UnavailableError if JAX reports that the device's memory is full."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise blocks.full() from error


@final
class Blocks:
    """Models of users by row: `size` users per block, and at most `most` users, if given."""

    def __init__(self, n_features: int, device: Any, size: int, most: int | None = None) -> None:
        self.n_features = n_features
        self.device = device
        self.code: Any = fused if device.platform == "gpu" else kernels
        self.size = size
        self.most = most
        self._blocks: list[Block] = []
        self._first: list[Any] = []  # the first row of each, on the device

    def like(self) -> "Blocks":
        """Return blocks of the same kind, without users."""
        return Blocks(self.n_features, self.device, self.size, self.most)

    @property
    def room(self) -> int:
        """How many users there is room for."""
        return self.size * len(self._blocks)

    def wait(self) -> None:
        """Wait until the device has done all calls."""
        ready(self._blocks)

    @property
    def user_bytes(self) -> int:
        """How many bytes one user takes."""
        return 12 * (self.n_features * (self.n_features + 1) // 2 + self.n_features)

    def full(self) -> UnavailableError:
        """Return the error of a device without room."""
        return UnavailableError(
            f"no room for more than {self.room if self.most is None else self.most:,} users of "
            f"{self.n_features} features on {self.device}, at {self.user_bytes:,} bytes per user; nothing was "
            "changed; drop users, or take a device with more memory"
        )

    @on_device
    def reserve(self, rows: int) -> None:
        """Make room for this many users; if there is none, raise UnavailableError and change nothing."""
        if self.most is not None and rows > self.most:
            raise self.full()
        made: list[Block] = []
        while self.room + self.size * len(made) < rows:
            stats = self.device.memory_stats() or {}
            limit = stats.get("bytes_limit")
            if limit and stats["bytes_in_use"] + self.size * self.user_bytes > (1 - BESIDE) * limit:
                raise self.full()
            with jax.default_device(self.device):
                block = jax.device_put(kernels.empty(self.n_features, self.size), self.device)
            made.append(Block(*ready(block)))
        firsts = [self.room + self.size * k for k in range(len(made))]
        self._first += jax.device_put([np.int32(first) for first in firsts], self.device)
        self._blocks += made

    @on_device
    def look(
        self, questions: Sequence[Question], scale: float, rounding: float, used: int
    ) -> tuple[Floats, Floats]:
        """Return the views of the asking users, and the sums over their neighbours among the rows before `used`.

        (2, candidates of all questions): own estimates and spreads, and (3, candidates): members, estimates, spreads.
        """
        blocks = list(self._used(used))
        tables = self._tables(questions, scale, rounding, used)
        # With one block, one call is enough.
        views = [None] * len(tables) if len(blocks) == 1 else self._seen(tables, questions)
        parts = [
            [self.code.gather(block.inverses, block.weights, table, first, own) for block, first in blocks]
            for table, own in zip(tables, views, strict=True)
        ]
        answers = [
            _total(view, [np.asarray(one) for one in part])  # faster than device_get
            for view, part in zip(views, parts, strict=True)
        ]
        found = _joined(answers, sum(len(question.contexts) for question in questions))
        return found[:2], found[2:]

    @on_device
    def view(self, questions: Sequence[Question]) -> Floats:
        """Return own estimates and spreads (2, candidates of all questions)."""
        views = jax.device_get(self._seen(self._tables(questions, 0.0, 0.0, 0), questions))
        return _joined(views, sum(len(question.contexts) for question in questions))

    def _tables(
        self, questions: Sequence[Question], scale: float, rounding: float, used: int
    ) -> list[Floats]:
        """Return the questions as tables, one for each product. See `kernels.questions`."""
        d, fields = self.n_features, kernels.whole(self.n_features)
        widths = list(product_widths(sum(len(question.contexts) for question in questions)))
        table, last = np.zeros((sum(widths), kernels.table_width(d))), 0
        for row, contexts, view in questions:
            first, last = last, last + len(contexts)
            table[first:last, :d], table[first:last, fields : fields + 2] = contexts, view.T
            table[first:last, fields + 4] = row
        table[last:, fields + 4] = -1  # rows beyond the candidates
        table[:, fields + 2], table[:, fields + 3], table[:, fields + 5] = scale, rounding, used
        return [table] if len(widths) == 1 else np.split(table, np.cumsum(widths)[:-1])

    def _seen(self, tables: Sequence[Floats], questions: Sequence[Question]) -> list[Any]:
        """Return the estimates and spreads of the asking users, for each table."""
        fields = kernels.whole(self.n_features)
        views: list[Any] = [table[:, fields : fields + 2].T for table in tables]
        for number in sorted({question.row // self.size for question in questions if question.row >= 0}):
            block, first = self._blocks[number], self._first[number]
            views = [
                kernels.see(block.inverses, block.weights, table, first, view)
                for table, view in zip(tables, views, strict=True)
            ]
        return views

    def _used(self, used: int) -> Iterator[tuple[Block, Any]]:
        """Yield the blocks with rows in use, each with its first row."""
        last = -(-used // self.size)
        return zip(self._blocks[:last], self._first[:last], strict=True)

    @on_device
    def near(self, asked: Asked) -> NDArray[np.bool_]:
        """Return which rows are near, for a question of one candidate: (room,)."""
        found = self._find(asked, np.inf, -1, 0.0)
        return np.concatenate([np.zeros(0), *jax.device_get([part.learns for part in found])]) > 0

    @on_device
    def share(self, asked: Asked, payoff: float, limit: float, own: int) -> int:
        """Update the neighbours with a bound below `limit`, and the row `own` if it is not -1; return how many.

        They are found in all blocks before the first block changes.
        """
        found = self._find(asked, limit, own, payoff)
        ready(found)  # raises if there is no memory, before anything changes
        for number, part in enumerate(found):
            self._blocks[number] = self.code.learn(self._blocks[number], part)
        return int(sum(jax.device_get([part.count for part in found])))

    def _find(self, asked: Asked, limit: float, own: int, payoff: float) -> list[kernels.Found]:
        rule = (asked.estimate[0], asked.reach[0], asked.scale, limit)
        found = []
        for number, block in enumerate(self._blocks):
            here = own - number * self.size
            column = here if own >= 0 and 0 <= here < self.size else -1
            question = np.concatenate([asked.contexts[0], rule, [column, payoff]])
            found.append(self.code.find(block.inverses, block.weights, question))
        return found

    @on_device
    def learn(self, row: int, context: Floats, payoff: float, fresh: bool) -> None:
        """Update one user; with `fresh`, from M = I and w = 0."""
        number = row // self.size
        asked = np.concatenate([context, [payoff, row % self.size, float(fresh)]])
        # Reading and writing in one call would copy the block.
        self._write(row, kernels.learn_row(self._blocks[number], asked), 1)

    @on_device
    def clear(self, row: int) -> None:
        """Free and clear a row."""
        user = kernels.stranger(self.n_features)
        nothing = Block(0 * user.inverses, np.full(self.n_features, np.nan), *user[2:])
        self._write(row, Block(*(part[None] for part in nothing)), 1)

    @on_device
    def move(self, source: int, target: int) -> None:
        """Copy a row over another one."""
        column = np.array([source % self.size], dtype=np.int32)
        self._write(target, kernels.read(self._blocks[source // self.size], column), 1)

    @on_device
    def read(self, rows: NDArray[np.int64]) -> Block:
        """Return some users, one row each: (rows, pairs), (rows, features) and so on."""
        found = Block(
            *(np.empty((len(rows), len(part)), part.dtype) for part in kernels.stranger(self.n_features))
        )
        numbers, columns = rows // self.size, (rows % self.size).astype(np.int32)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            for start in range(0, len(here), PIECE):
                places = here[start : start + PIECE]
                asked = _padded(columns[places], 0, _power(len(places), 1))
                piece = jax.device_get(kernels.read(self._blocks[number], asked))
                for array, part in zip(found, piece, strict=True):
                    array[places] = part[: len(places)]
        return found

    @on_device
    def write(self, first: int, rows: Block) -> None:
        """Write users into free rows from `first` on."""
        self._write(first, rows, min(PIECE, self.size))

    def _write(self, first: int, rows: Block, step: int) -> None:
        """Write pieces of `step` columns, each into the columns that begin at a multiple of `step`."""
        last = first + len(rows.weights)
        for start in range(first // step * step, last, step):
            low, high = max(first, start), min(last, start + step)
            piece = rows
            if len(rows.weights) != step or low != start:
                piece = Block(
                    *(_padded(part[low - first : high - first], low - start, step) for part in rows)
                )
            number, column = divmod(start, self.size)
            edges = np.int32(column), np.int32(low - start), np.int32(high - start)
            self._blocks[number] = kernels.write(self._blocks[number], piece, *edges)


def product_widths(columns: int) -> Iterator[int]:
    """Yield how many columns each product has, for this many columns in all.

    Only powers of two, since each width is compiled once: one that is little wider, or a part of the columns.
    """
    while columns > 0:
        width = _power(columns, FEW_COLUMNS)
        if width > MOST_COLUMNS or (width > 32 and 4 * width > 5 * columns):
            width = min(MOST_COLUMNS, width // 2)
        yield width
        columns -= width


def ready(arrays: Any) -> Any:
    """Wait for arrays, and return them."""
    return jax.block_until_ready(arrays)  # type: ignore[no-untyped-call]


def _total(view: Any, parts: Sequence[Floats]) -> Floats:
    """Return views and sums (5, candidates) over all blocks. With one block they are its answer."""
    if len(parts) == 1:
        return parts[0]
    sums = sum((part[2:] for part in parts), np.zeros((3, view.shape[1])))
    return np.concatenate([np.asarray(view), sums])


def _joined(parts: Sequence[Floats], count: int) -> Floats:
    """Return the columns of all parts, the first `count` of them."""
    return (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))[:, :count]


def _power(count: int, least: int) -> int:
    """Return the smallest power of two that is neither below `count` nor below `least`."""
    return max(least, 1 << (count - 1).bit_length())


def _padded(part: Any, before: int, length: int) -> Any:
    made = np.zeros((length, *part.shape[1:]), part.dtype)
    made[before : before + len(part)] = part
    return made


def find_device(name: str | None) -> Any:
    """Return a device of JAX: the first GPU, or the one named as platform or platform:number."""
    platform, _, number = (name or "gpu").partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        known = ", ".join(sorted({f"{d.platform}:{d.id}" for d in jax.devices()}))
        raise ParameterError(
            f"device is {name!r}, but JAX finds {known} here; for a GPU install jax[cuda13], or take device='cpu'"
        ) from error
