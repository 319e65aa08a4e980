"""Experiments: play policies on worlds and logs, keep traces, draw figures, write reports."""

from coterie.experiments.replay import Replay, replay

__all__ = ["Replay", "replay"]
