"""A fleet file and the guard of a canary: the file starts it, and undoes nothing that the guard decided."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model import Adapter, CanaryOutcome, Guard, Version
from gateway.declarative.operations import document, resolve
from gateway.declarative.operations.current import adapter_spec
from gateway.declarative.operations.specs import AdapterSpec
from gateway.errors import FlorinError

GUARD = Guard("rollback", then=(50, 100))
SAID: dict[str, Any] = {
    "versions": [{"version": f"v{n}", "source": f"/{n}"} for n in (1, 2)],
    "live": "v1",
    "canary": {"version": "v2", "weight": 10, "guard": {"action": "rollback", "then": [50, 100]}},
}
VERSIONS = [
    Version(
        adapter="acme/support", number=n, digest=f"sha256:{n:064}", engine_name=f"fl-{n}", path="",
        base_model="base", rank=8, size_bytes=1, source=f"/{n}", created=0,
    )
    for n in (1, 2)
]  # fmt: skip


def wanted(**fields: Any) -> AdapterSpec:
    made = document.parse({"florin": 1, "adapters": {"acme/support": SAID | fields}}).adapters
    assert made is not None
    return made["acme/support"]


def goal(now: Adapter, said: AdapterSpec, outcome: CanaryOutcome | None = None) -> tuple[Any, Any, Any]:
    """What is live, and the canary's version and weight."""
    found = resolve.adapter("acme/support", adapter_spec(now, VERSIONS), said, retired={}, outcome=outcome)
    canary = found.canary
    return found.live, canary and canary.version, canary and canary.weight


def canary(weight: int, guard: Guard | None = GUARD) -> Adapter:
    return Adapter("acme/support", 1, canary=2, weight=weight, guard=guard, latest=2)


ALONE = Adapter("acme/support", 1, latest=2)
LIVE = Adapter("acme/support", 2, history=(1,), latest=2)


def decided(verdict: Any, version: int = 2) -> CanaryOutcome:
    return CanaryOutcome(verdict, version, "Why.", 1)


def test_what_is_exported_is_what_is_there():
    exported = adapter_spec(canary(10), VERSIONS)
    assert exported.canary is not None
    again = wanted(canary=exported.canary.model_dump(mode="json"))
    assert again.canary == exported.canary == wanted().canary


@pytest.mark.parametrize(
    ("now", "outcome", "expected"),
    [
        (ALONE, None, ("v1", "v2", 10)),
        (canary(10), None, ("v1", "v2", 10)),
        (canary(50), None, ("v1", "v2", 50)),  # the guard has raised it
        (canary(40), None, ("v1", "v2", 10)),  # someone else has
        (canary(50, None), None, ("v1", "v2", 10)),
        (ALONE, decided("rollback"), ("v1", None, None)),
        (ALONE, decided("rollback", 1), ("v1", "v2", 10)),  # of another canary
        (LIVE, decided("promote"), ("v2", None, None)),
        (LIVE, None, ("v1", "v2", 10)),  # someone has made it live: the file is what counts
    ],
)
def test_a_file_undoes_nothing_that_the_guard_decided(
    now: Adapter, outcome: CanaryOutcome | None, expected: Any
):
    assert goal(now, wanted(), outcome) == expected


def test_a_file_that_has_changed_is_what_counts():
    unguarded = wanted(canary={"version": "v2", "weight": 10})
    assert goal(ALONE, unguarded, decided("rollback")) == ("v1", "v2", 10)
    assert goal(ALONE, wanted(live="v2", canary=None), decided("rollback")) == ("v2", None, None)
    assert goal(LIVE, wanted(live="v2", canary=None), decided("promote")) == ("v2", None, None)


@pytest.mark.parametrize(
    "guard", [{}, {"action": "x"}, {"action": "hold", "then": [50, 50]}, {"action": "hold", "x": 1}]
)
def test_a_wrong_guard_is_refused_by_its_place(guard: dict[str, Any]):
    with pytest.raises(FlorinError, match=r"adapters\.acme/support\.canary\.guard"):
        wanted(canary={"version": "v2", "weight": 10, "guard": guard})
