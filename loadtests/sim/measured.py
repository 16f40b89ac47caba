"""What a course amounts to, with what only controllers have: routes that they change."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from gateway.planning.simulator.course_figures import Figures, figures
from gateway.planning.simulator.gateway_model import Simulation, Site
from loadtests.sim.dynamo.policy import DynamoPolicy


@dataclass(frozen=True, slots=True)
class Measured(Figures):
    routes_per_thousand: float
    """Targets that a controller adds or removes. NaN without one: what engines hold is the route."""


def measured(simulation: Simulation, site: Site) -> Measured:
    """Run the simulation."""
    course = simulation.run()
    policies = [worker.scheduler.policy for worker in simulation.workers]
    controllers = [each.controller for each in policies if isinstance(each, DynamoPolicy)]
    changes = sum(each.changes for each in controllers if each) if controllers else math.nan
    routes = 1000 * changes / len(course.requests)
    return Measured(**asdict(figures(course, site)), routes_per_thousand=routes)
