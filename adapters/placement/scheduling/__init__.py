"""Chooses the engine of each request: filter → score → pick. Pure: no I/O, and the clock is passed in.

`EngineView` and `Fleet` hold what a worker knows; the gateway and the simulator keep them up to date, and the
policies only read them. `Scheduler` applies the filters around a policy.
"""
