"""The state of a loop: decisions, events, statistics, and the coordinator that owns them."""
