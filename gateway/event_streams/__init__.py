"""Audit and usage as CloudEvents, posted to other systems: each at least once, in order, with ids that never
change.

`streams` says what waits and what was taken, in the ledger; `receiver` posts; `delivery` is the job that does
both, on one worker of the installation for each stream; `watch` tells metrics and conditions how far it is.
"""
