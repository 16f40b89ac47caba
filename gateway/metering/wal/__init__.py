"""The write-ahead log of usage records, and shipping it to the ledger."""
