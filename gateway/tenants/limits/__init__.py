"""Limits and budgets of tenants and keys, over all workers: see docs/limits.md.

`Limiter` is what the lifecycle calls. `shared_counters` leases shares in the store, `subject_account` keeps
those of one tenant or key, `needs` estimates what a request will use, `wording` renders headers and refusals,
`budget_watch` compares budgets with the ledger.
"""
