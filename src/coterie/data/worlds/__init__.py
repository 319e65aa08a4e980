"""Synthetic worlds, whose expected payoffs are known."""
