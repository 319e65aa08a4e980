"""The log and its stores: SQLite, PostgreSQL, group commit, recovery, retention and erasure."""
