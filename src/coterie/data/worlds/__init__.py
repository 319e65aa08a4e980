"""Synthetic worlds that know their truth."""
