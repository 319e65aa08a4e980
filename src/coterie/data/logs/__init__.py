"""Users' own logs: formats, checks and candidate lists."""
