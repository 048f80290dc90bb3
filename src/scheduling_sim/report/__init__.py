"""A run's figures as CSV, JSON, plots and one self-contained page."""
