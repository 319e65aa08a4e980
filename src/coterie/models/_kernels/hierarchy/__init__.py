"""Compiled loops of the models that learn their prior."""
