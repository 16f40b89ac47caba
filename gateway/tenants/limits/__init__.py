"""Limits and budgets of tenants and keys, over all workers: see docs/limits.md.

`Limiter` is what the lifecycle calls. `subject_account` keeps this worker's shares, `needs` estimates what a
request will use, `wording` renders headers and refusals, `budget_watch` compares budgets with the ledger.
"""
