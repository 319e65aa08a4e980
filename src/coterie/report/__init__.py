"""Pages, figures and tables, for all kinds of reports."""
