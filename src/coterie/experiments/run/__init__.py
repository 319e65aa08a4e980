"""One run: its specification, its loop, its trace, and many of them at once."""
