"""The shared parts of policies."""
