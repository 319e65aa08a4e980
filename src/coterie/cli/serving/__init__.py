"""Commands for a service."""
