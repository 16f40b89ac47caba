"""The write-ahead log of usage records, and its way into the ledger."""
