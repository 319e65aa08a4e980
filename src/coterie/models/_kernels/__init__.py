"""Compiled inner loops, private to the models."""
