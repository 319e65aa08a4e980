"""Shared parts of commands: options, progress bars, tables and errors."""
