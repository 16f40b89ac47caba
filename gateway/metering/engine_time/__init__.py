"""The time in which each engine was alive, and its token counters."""
