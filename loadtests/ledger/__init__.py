"""A synthetic month of usage records through the ledger: how long what finance asks takes, and how much
memory, beside adding up the raw records."""
