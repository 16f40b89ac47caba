"""florin cost …: one module a command or two, each registered on `app`."""
