"""Features into vectors, as `coterie.models.features` says."""

from coterie.models.features import count, flatten, hash_action, hash_actions, hash_name

__all__ = ["count", "flatten", "hash_action", "hash_actions", "hash_name"]
