"""What operators do to a fleet: one room for each noun. The decisions themselves are in `adapters`."""
