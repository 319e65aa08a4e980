"""Numbered ridge regressions, for every policy but CAB, and the graphs over them."""
