"""The formulas of `models/bounds.py`, compiled."""

from coterie.models import bounds
from coterie.models._kernels.jit import jit

scale_after = jit(bounds.scale_after)
certainty = jit(bounds.certainty)
