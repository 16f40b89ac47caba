"""A tenant's monthly statement: figures, plots and page."""
