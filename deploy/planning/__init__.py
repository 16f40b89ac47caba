"""`florin plan`: how many engines a workload needs, from the simulator, and what they cost."""
