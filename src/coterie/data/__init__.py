"""Where rounds come from: synthetic worlds that know their truth, and files that do not."""

from coterie.data.rounds import Round
from coterie.data.worlds.synthetic import WORLDS, DenseWorld, OneHotWorld, SparseWorld, World, make_world

__all__ = ["WORLDS", "DenseWorld", "OneHotWorld", "Round", "SparseWorld", "World", "make_world"]
