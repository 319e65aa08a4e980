"""User models with few nonzeros, for thousands of features: each user's history and current support.

A model is w on its support Ŝ, found by sparse recovery from the history after every update, and
M = I + XᵀX between the features of Ŝ; the spread of a context is √(x_Ŝᵀ M⁻¹ x_Ŝ). Memory grows with the histories
and the supports: a context is stored once for all users who learned from it, and a user holds O(s) columns of XᵀX,
never all d of them.

A user has an empty support before the first update, or if every payoff was 0. Then w = 0 and the spread is ‖x‖, as
M = I on all features gives and as for an unknown user in CAB. The bound of an empty support, taken literally, would
be 0: the user with the least data would look the most certain.
"""

from collections.abc import Hashable
from typing import final

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.errors import ContextError, FileError
from coterie.models._kernels.users.sparse import views
from coterie.models.actions import ActionsLike
from coterie.models.checks import read_vectors
from coterie.models.files import Tensors, take
from coterie.models.protocol import ROUNDING, Near, View
from coterie.models.users.history import History
from coterie.models.users.records import RecordStore
from coterie.models.users.recovery import Fit, Method, expansion, recover, regularised, solve
from coterie.models.users.user_rows import RowModels, UserRows


@final
class Sparse(RowModels):
    """One regression per user over `n_features` features, with at most `sparsity` nonzeros."""

    def __init__(self, n_features: int, sparsity: int, method: Method) -> None:
        self.n_features = n_features
        self.sparsity = sparsity
        self._extra = expansion(method, sparsity)
        self._empty()

    def _empty(self) -> None:
        s = self.sparsity
        self._known = UserRows()
        self._histories: list[History] = []  # (rows,)
        self._records = RecordStore(self.n_features)
        self._supports = np.zeros((0, s), dtype=np.int64)  # (rows or more, sparsity), the first `sizes` used
        self._sizes = np.zeros(0, dtype=np.int64)  # (rows or more,)
        self._weights = np.zeros((0, s))  # (rows or more, sparsity): w on the support
        self._inverses = np.zeros((0, s, s))  # (rows or more, sparsity, sparsity): M⁻¹ on the support

    def read(self, contexts: ActionsLike) -> Floats:
        """Check candidates and return them as (candidates, n_features)."""
        return read_vectors(contexts, self.n_features)

    def view(self, user: Hashable, contexts: Floats) -> View:
        """Return the user's own estimates and spreads."""
        row = self._known.row(user)
        if row < 0:
            return View(np.zeros(len(contexts)), _lengths(contexts))
        estimates, spreads = self._views(contexts, slice(row, row + 1))
        return View(estimates[0], spreads[0])

    def gather(self, user: Hashable, contexts: Floats, view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours."""
        estimates, spreads, near = self._neighbourhoods(contexts, view, scale)  # (rows, candidates) each
        return self._with_user(
            user, view, np.array([part.sum(axis=0) for part in (near, estimates * near, spreads * near)])
        )

    def neighbours(self, user: Hashable, contexts: Floats, view: View, scale: float) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        first = View(view.estimate[:1], view.spread[:1])
        _, _, near = self._neighbourhoods(contexts[:1], first, scale)
        return self._named(user, near[:, 0])

    def update(self, user: Hashable, context: Floats, payoff: float) -> int:
        """Update one user."""
        return self._learn([self._activate(user)], context, payoff)

    def share(
        self, user: Hashable, context: Floats, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Update the certain neighbours."""
        contexts = context[None, :]
        _, spreads, near = self._neighbourhoods(contexts, view, scale)
        sure = near[:, 0] & (scale * spreads[:, 0] < limit)
        if (row := self._known.row(user)) >= 0:
            sure[row] = True  # whatever the rounding
        rows = np.flatnonzero(sure).tolist()
        if self._known.lacks_row(user):
            rows.append(self._activate(user))
        return self._learn(rows, context, payoff)

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the gap, and records without other users are wiped."""
        row, last = self._known.drop(user), self._known.n_rows
        if row < 0:
            return
        self._records.release(self._histories[row].numbers)
        history = self._histories.pop()
        if row != last:
            self._histories[row] = history
        for array in (self._supports, self._sizes, self._weights, self._inverses):
            array[row] = array[last]
            array[last] = 0

    def tensors(self) -> Tensors:
        """Return the records, the histories as positions in them, and the supports; all else follows."""
        histories = [history.numbers for history in self._histories]
        numbers, history = _by_first_use(np.concatenate([*histories, np.empty(0, dtype=np.int64)]))
        contexts, payoffs = self._records.read(numbers)
        rows, names = self._known.pack(self.users)
        return {
            **names,
            "contexts": contexts,
            "payoffs": payoffs,
            "history": history,
            "lengths": np.array([len(one) for one in histories], dtype=np.int64),
            "supports": self._supports[rows],
            "sizes": self._sizes[rows],
        }

    def restore(self, tensors: Tensors) -> None:
        """Replace all users."""
        names, idle = UserRows().unpack(tensors)
        payoffs = take(tensors, "payoffs", "f", (None,)).astype(np.float64)
        contexts = take(tensors, "contexts", "f", (len(payoffs), self.n_features)).astype(np.float64)
        lengths = take(tensors, "lengths", "i", (len(names),))
        history = take(tensors, "history", "i", (None,))
        sizes = take(tensors, "sizes", "i", (len(names),))
        supports = take(tensors, "supports", "i", (len(names), self.sparsity))
        self._check_saved(payoffs, contexts, lengths, history, sizes, supports)
        holders = np.bincount(history, minlength=len(payoffs))
        self._empty()
        self._known.put([], idle)
        for context, payoff, n in zip(contexts, payoffs.tolist(), holders.tolist(), strict=True):
            self._records.put(context, payoff, n)
        for name, stop, length, size, support in zip(
            names, np.cumsum(lengths), lengths, sizes, supports, strict=True
        ):
            row = self._activate(name)
            self._histories[row].replay(history[stop - length : stop])
            self._keep(row, solve(self._histories[row], support[:size].astype(np.int64)))

    def _check_saved(
        self,
        payoffs: Floats,
        contexts: Floats,
        lengths: Ints,
        history: Ints,
        sizes: Ints,
        supports: Ints,
    ) -> None:
        """Raise FileError unless saved histories and supports can be those of some users."""
        try:
            if len(payoffs):
                read_vectors(contexts, self.n_features)
        except ContextError as error:
            raise FileError(f"the model file holds what cannot have been learned: {error}") from error
        used = np.arange(self.sparsity) < sizes[:, None]  # (users, sparsity)
        rising = (np.diff(supports, axis=1) > 0) | ~used[:, 1:]
        if not (
            (np.abs(payoffs) <= 1).all()
            and (lengths >= 1).all()
            and lengths.sum() == len(history)
            and np.array_equal(np.unique(history), np.arange(len(payoffs)))
            and ((sizes >= 0) & (sizes <= self.sparsity)).all()
            and ((supports >= 0) & (supports < self.n_features)).all()
            and rising.all()
            and not supports[~used].any()
        ):
            raise FileError("the histories in the model file contradict each other")

    def _views(self, contexts: Floats, rows: slice) -> tuple[Floats, Floats]:
        """Return the estimates and spreads of the users in `rows`: (rows, candidates) each."""
        return views(
            contexts,
            _lengths(contexts),
            self._supports[rows],
            self._sizes[rows],
            self._weights[rows],
            self._inverses[rows],
        )

    def _neighbourhoods(self, contexts: Floats, view: View, scale: float) -> tuple[Floats, Floats, Bools]:
        estimates, spreads = self._views(contexts, slice(0, self._known.n_rows))
        near = np.abs(estimates - view.estimate) <= scale * (spreads + view.spread) + ROUNDING
        return estimates, spreads, near

    def _activate(self, user: Hashable) -> int:
        """Return the user's row, made if there is none yet."""
        row = self._known.row(user)
        if row >= 0:
            return row
        row = self._known.give_row(user)
        asked = self.sparsity + self._extra  # at once, at most
        self._histories.append(History(self._records, 2 * self.sparsity, 2 * asked))
        if row == len(self._sizes):
            more = max(16, row)
            self._supports, self._sizes, self._weights, self._inverses = (
                np.concatenate([array, np.zeros((more, *array.shape[1:]), dtype=array.dtype)])
                for array in (self._supports, self._sizes, self._weights, self._inverses)
            )
        return row

    def _learn(self, rows: list[int], context: Floats, payoff: float) -> int:
        number = self._records.put(context, payoff, len(rows))
        for row in rows:
            history = self._histories[row]
            history.learn(number, context, payoff)
            before = self._supports[row, : self._sizes[row]]
            self._keep(row, recover(history, self.sparsity, self._extra, before))
        return len(rows)

    def _keep(self, row: int, fit: Fit) -> None:
        """Write a user's model."""
        size = self._sizes[row] = len(fit.support)
        self._supports[row], self._weights[row], self._inverses[row] = 0, 0.0, 0.0
        self._supports[row, :size], self._weights[row, :size] = fit.support, fit.weights
        self._inverses[row, :size, :size] = np.linalg.inv(regularised(self._histories[row], fit.support))


def _lengths(contexts: Floats) -> Floats:
    lengths: Floats = np.sqrt(np.einsum("kf,kf->k", contexts, contexts))
    return lengths


def _by_first_use(numbers: Ints) -> tuple[Ints, Ints]:
    """Return the different numbers in the order they first come, and the position in them of each."""
    different, first, position = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return different[order], np.argsort(order)[position]
