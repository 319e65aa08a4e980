"""Advice on a log: whether users differ, whether sharing feedback pays, and which policy to start with."""

from coterie.advice.advice import Advice, advise
from coterie.advice.records import Records, from_blocks, read_log

__all__ = ["Advice", "Records", "advise", "from_blocks", "read_log"]
