"""Compiled loops over rows."""
