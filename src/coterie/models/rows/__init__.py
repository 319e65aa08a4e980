"""Numbered ridge regressions, for every policy except CAB, and graphs over them."""
