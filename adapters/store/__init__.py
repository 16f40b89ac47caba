"""State shared by the workers: the protocol, Redis, its scripts, the change feed, the embedded server."""
