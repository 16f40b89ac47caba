"""Where versions are, why, and what a request's decision was."""
