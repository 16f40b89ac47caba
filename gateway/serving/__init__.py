"""`florin serve`: the server, its workers, and their parent."""
