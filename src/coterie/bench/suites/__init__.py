"""The suites of `coterie bench`, one per file."""
