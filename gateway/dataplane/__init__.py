"""One request over HTTP: read, answered, logged."""
