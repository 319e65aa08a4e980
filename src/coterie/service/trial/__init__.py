"""Trials of champion, challenger and holdback: assigns users to arms, and compares what the arms earn."""
