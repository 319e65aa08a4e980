"""The formulas of `models/bounds.py`, compiled."""

from coterie.models import bounds
from coterie.models._kernels.jit import jit

scale_after = jit(bounds.scale_after)
is_near = jit(bounds.is_near)
certainty = jit(bounds.certainty)
