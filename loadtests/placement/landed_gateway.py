"""`florin serve` with the policy that Florin had before there were replicas."""

from __future__ import annotations

import gateway.cli
from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.scheduling.scheduler import Scheduler
from loadtests.sim.landed import landed


def main() -> None:
    POLICIES["cost"] = lambda: Scheduler(landed)
    gateway.cli.main()
