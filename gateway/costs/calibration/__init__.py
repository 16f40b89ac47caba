"""What a token costs an engine: a designed load (`design`), its measurement (`load`), a fit (`fit`), and the
place where the result is kept (`store`)."""
