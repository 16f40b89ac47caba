"""How property tests search.

What CI and users run is *fixed*: the same examples every time, whatever ran before, without a look at the clock
and without an example database. A search that finds something new on the thousandth run fails for somebody who
has changed nothing. The long form of the suite searches elsewhere each time, in a hundred times as
many examples, and prints how to reproduce what it finds: pin that with `@example`, and fix it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support.forms import LONG

FACTOR = 100 if LONG else 1


def examples(number: int, *, suppress: tuple[HealthCheck, ...] = ()) -> settings:
    """In place of `settings(max_examples=number)`, which no profile could change."""
    return settings(
        max_examples=number * FACTOR, suppress_health_check=[*settings().suppress_health_check, *suppress]
    )


def begin() -> None:
    """Register the profiles and load one: before the first test module is imported."""
    # Health checks take the time: a busy machine is no defect of a strategy.
    quiet: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("fixed", derandomize=True, database=None, **quiet)
    settings.register_profile("long", max_examples=100 * FACTOR, print_blob=True, **quiet)
    settings.load_profile("long" if LONG else "fixed")
    if not LONG:
        forget_constants()


def forget_constants() -> None:
    """Hypothesis tries the constants that it reads in the project's modules that happen to be imported: which
    examples a test gets would depend on what ran before it. There is no setting for it; tests/tools/suite/test_search.py
    fails when this no longer helps."""
    nothing = providers._local_constants
    providers._get_local_constants = lambda: nothing
