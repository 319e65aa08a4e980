"""The bandit that the service runs: decisions, records, users, events and policies, without a clock or a disk."""
