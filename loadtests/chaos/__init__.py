"""`python -m loadtests.chaos`: a seeded schedule of faults against two gateways under load, and what must
hold afterwards. `schedule` decides what happens when, `faults` does it, `voices` asks and writes down what it
hears, `evidence` gathers what is there at the end, and `checks` judges it, purely."""
