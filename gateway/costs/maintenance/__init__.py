"""The ledger process, and the job that maintains the ledger."""
