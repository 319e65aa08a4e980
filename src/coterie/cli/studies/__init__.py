"""Commands for data and experiments."""
