"""Files and batches: requests that can wait, run when engines are idle.

    upload → create → validate → run each line through `gateway.lifecycle` → results → output and error file

Everything is in the ledger's database. A worker leases a batch and runs its lines; if it dies, the lease
lapses and another worker goes on with the lines that have no result. `results.store` says why each line is
answered once and billed once.
"""
