"""Compiled loops over users' models."""
