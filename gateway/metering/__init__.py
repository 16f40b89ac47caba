"""From an attempt to its record in the ledger.

attempt           counts one attempt, and writes its lines; `records` is what they say
meter             a worker's metering: keeps the log, and starts what ships it
wal/              the usage log on local disk, and its way to the ledger
ledger/           the database: records, and what must be rolled up again
engine_time/      when each engine was up, and its own counters
"""
