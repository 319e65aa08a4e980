"""Reports, figures and tables of experiments."""
