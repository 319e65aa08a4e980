"""The whole state as bytes and back, in pieces."""
