"""`python -m loadtests.chaos`: injects a seeded schedule of faults into two gateways under load and then
checks invariants. `schedule` plans the faults, `faults` injects them, `voices` runs the clients, `evidence`
gathers the final state, and `checks` judges it, purely."""
