"""Evaluations in the service: what other policies would have earned, worked out beside the serving."""
