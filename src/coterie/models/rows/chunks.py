"""Rounds as arrays, in chunks: the input and output of the policies' compiled loops, and the loops."""

from collections.abc import Callable, Hashable
from typing import final

import numpy as np

from coterie.arrays import Ints
from coterie.models._kernels.rows.club import Club, play_club
from coterie.models._kernels.rows.dynucb import Clusters, nearest, newcomers_cluster, play_dynucb
from coterie.models._kernels.rows.game import Game, People
from coterie.models._kernels.rows.linucb import Linear, play_linucb
from coterie.models._kernels.rows.sclub import partner
from coterie.models.actions import Actions
from coterie.models.batches import Batch, Outcome, as_rounds, names_of, outcome_of, positions
from coterie.models.rows.ridge_rows import RidgeRows

__all__ = [
    "Chunk", "Club", "Clusters", "Game", "Items", "Linear", "nearest", "newcomers_cluster", "partner", "play_chunks",
    "play_club", "play_dynucb", "play_linucb",
]  # fmt: skip

CHUNK = 1 << 16  # rounds copied at once


@final
class Items:
    """All items of a batch in the rows' format; collects the items that get a number in a loop."""

    def __init__(self, models: RidgeRows, contexts: Actions) -> None:
        self._models = models
        self.names = list(contexts) if models.one_hot else []
        self.numbers = np.array(models.numbers(contexts))  # a copy: the loop writes new items' numbers here
        self.named = np.zeros(2 + len(self.names), dtype=np.int64)
        self._start()

    def _start(self) -> None:
        self.named[0] = len(self._models.items)
        self.named[1] = 0

    def settle(self) -> None:
        """Register the items that got a number."""
        for position in self.named[2 : 2 + self.named[1]].tolist():
            self._models.items[self.names[position]] = len(self._models.items)
        self._start()


@final
class Chunk:
    """Some rounds in the format of compiled loops, with their outcomes after the loop."""

    def __init__(self, batch: Batch, row: Callable[[Hashable], int]) -> None:
        self.users, who = positions(batch.users)  # the user of each number
        self.people = People(
            np.array([row(user) for user in self.users], dtype=np.int64),
            np.zeros(1 + len(self.users), dtype=np.int64),
        )
        self.rounds = as_rounds(batch, who)

    def play(
        self, items: Actions, named: Ints, learned: int, known: int, loop: Callable[[Game], None]
    ) -> int:
        """Play all rounds, after `learned` payoffs and with `known` users; return how many payoffs there are then.

        `loop` makes room and plays as many rounds as there is room for.
        """
        game = Game(self.rounds, self.people, items, named, np.array([0, learned, known]))
        while game.so_far[0] < len(self.rounds.who):
            loop(game)
        return int(game.so_far[1])

    @property
    def joined(self) -> list[Hashable]:
        """The users who got a row, in order."""
        return [self.users[number] for number in self.people.joined[1 : 1 + self.people.joined[0]]]


def play_chunks(
    batch: Batch, items: Items, row: Callable[[Hashable], int], play: Callable[[Chunk, Items], None]
) -> Outcome:
    """Play a checked batch in chunks; `row` returns a user's row, -1 for an unknown user."""
    users = names_of(batch.users)
    parts = []
    for piece in batch._replace(users=users).pieces(0, len(users), CHUNK):
        chunk = Chunk(piece, row)
        play(chunk, items)
        items.settle()
        parts.append(outcome_of(chunk.rounds))
    return Outcome(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
