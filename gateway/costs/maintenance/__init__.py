"""What keeps the ledger up to date: its process and its regular job."""
