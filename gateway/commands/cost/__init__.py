"""florin cost …: one module for each command or pair of commands."""
