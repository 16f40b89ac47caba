"""How many engines a workload needs, from the simulator: what `florin plan` computes."""
