"""Plans the commit of each change of an adapter. Pure functions of one reading of the registry.

Each plan expects the documents that it was made from, so a stale reading causes a conflict, never a lost
update. `transaction` reads, commits and retries.
"""
