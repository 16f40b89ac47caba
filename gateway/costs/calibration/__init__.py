"""Measures what a token costs on an engine: designs loads (`design`), runs them (`load`), fits weights
(`fit`) and stores the result (`store`)."""
