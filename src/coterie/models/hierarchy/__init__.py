"""Models that learn their prior."""
