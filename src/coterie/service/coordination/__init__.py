"""Requests in the order of the log: one at a time to the bandit, answered once they are durable."""
