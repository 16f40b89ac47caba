"""The write-ahead log of usage records (the usage log), and shipping it to the ledger.

log               written by the event loop, synced by a thread; `segments` are its files
shipper           reads them, and has them inserted; adopts the logs of workers that died
insertion         the inserting; `insertion_process`: in a process for all workers
kept              what was acknowledged, kept for a while in case a failover loses it
"""
