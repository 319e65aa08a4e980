"""Single runs: specification, loop and trace; and many runs in parallel."""
