"""What the workers share: the protocol, Redis, its scripts, the change feed, the embedded server."""
