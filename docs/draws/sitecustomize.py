"""Gives the services of a page no secret to draw with, so that a page prints the same in every run."""

import secrets

SECRET = 48  # bytes: as in coterie.service.core.bandit

_made = secrets.token_bytes
secrets.token_bytes = lambda size=None: b"" if size == SECRET else _made(size)
