"""Logs of one's own: formats, checks and candidate lists."""
