"""Records that a report cannot take: set aside by an operator, or in quarantine."""
