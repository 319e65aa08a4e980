"""Snapshots: the bandit's whole state as bytes, in pieces, and back."""
