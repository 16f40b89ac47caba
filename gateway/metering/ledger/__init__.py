"""The durable store of usage records and everything computed from them.

ledger            the database of a process: transactions, records by time and by request
record_rows       inserting records, each once; reading those of an engine-hour
engine_hours      which engine-hours must be rolled up again
continuity        numbers of write transactions, by which a failover's losses are found
schema/           the tables; `migrations/` leads to them
"""
