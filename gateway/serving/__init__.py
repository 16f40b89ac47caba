"""`florin serve`: the server, its worker processes, and their parent."""
