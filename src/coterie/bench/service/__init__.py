"""Benchmarks of the service: load test, quality of decisions, many users."""
