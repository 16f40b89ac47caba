"""HTTP/1.1 on the event loop's own protocols, for the hot path between clients and engines."""
