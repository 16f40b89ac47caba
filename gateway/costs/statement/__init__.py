"""A customer's statement of a month: its figures, its plots, its page."""
