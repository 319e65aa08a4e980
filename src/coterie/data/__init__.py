"""Rounds to play: from synthetic worlds, whose expected payoffs are known, and from data files."""

from coterie.data.rounds import Round
from coterie.data.worlds.synthetic import WORLDS, DenseWorld, OneHotWorld, SparseWorld, World, make_world

__all__ = ["WORLDS", "DenseWorld", "OneHotWorld", "Round", "SparseWorld", "World", "make_world"]
