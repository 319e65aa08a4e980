"""Policies over a given social graph: neighbours learn from each other."""
