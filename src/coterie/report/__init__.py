"""Pages, figures and tables, for every room above."""
