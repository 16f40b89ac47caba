"""Benchmarks the ledger with a synthetic month of usage records: time and memory of finance's queries,
compared with summing the raw records."""
