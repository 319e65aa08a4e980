"""Compiled loops, private to the models."""
