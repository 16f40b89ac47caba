"""An adapter's settings: pinning, replicas, cost centre, and what a promotion requires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from adapters.errors import ConflictError
from adapters.model import Adapter, AdapterName
from adapters.registry.change_context import ChangeContext
from adapters.registry.changes.planned_change import PlannedChange, change_and_pins, change_of, no_change


def plan_pin(reading: ChangeContext, name: AdapterName, *, pinned: bool) -> PlannedChange[Adapter]:
    old = reading.adapter(name)
    new = replace(old, pinned=pinned)
    if new == old:
        return no_change(reading, old)
    return PlannedChange(
        change_and_pins(reading, old, new), new, "adapter.pin" if pinned else "adapter.unpin", old.live
    )


def plan_scale(
    reading: ChangeContext, name: AdapterName, bounds: Mapping[str, int | None]
) -> PlannedChange[Adapter]:
    """`bounds`: new values of `min_replicas` and `max_replicas`; what is left out stays. Raises
    NotFoundError, ConflictError."""
    old = reading.adapter(name)
    new = replace(old, **bounds)  # type: ignore[arg-type]  # only these two fields
    if new.max_replicas is not None and new.min_replicas > new.max_replicas:
        raise ConflictError(
            f"At least {new.min_replicas} and at most {new.max_replicas} replicas exclude each other."
        )
    if new == old:
        return no_change(reading, old)
    details = {
        field: {"old": getattr(old, field), "new": getattr(new, field)}
        for field in bounds
        if getattr(old, field) != getattr(new, field)
    }
    return PlannedChange([change_of(reading, old, new)], new, "adapter.scale", details=details)


def plan_cost_centre(reading: ChangeContext, name: AdapterName, label: str) -> PlannedChange[Adapter]:
    """`label`: empty removes it. Raises NotFoundError."""
    old = reading.adapter(name)
    new = replace(old, cost_centre=label)
    if new == old:
        return no_change(reading, old)
    details = {"cost_centre": {"old": old.cost_centre, "new": label}}
    return PlannedChange([change_of(reading, old, new)], new, "adapter.label", details=details)


def plan_unshare(reading: ChangeContext, name: AdapterName, tenant: str) -> PlannedChange[Adapter]:
    """Raises NotFoundError."""
    old = reading.adapter(name)
    new = replace(old, shared_with=tuple(other for other in old.shared_with if other != tenant))
    if new == old:
        return no_change(reading, old)
    return PlannedChange([change_of(reading, old, new)], new, "adapter.unshare", details={"tenant": tenant})


def plan_eval_policy(
    reading: ChangeContext, name: AdapterName, *, required: bool, data_sha256: str
) -> PlannedChange[Adapter]:
    """Raises NotFoundError."""
    old = reading.adapter(name)
    new = replace(old, require_eval=required, eval_data=data_sha256)
    if new == old:
        return no_change(reading, old)
    details = {
        "require_eval": {"old": old.require_eval, "new": new.require_eval},
        "data_sha256": {"old": old.eval_data, "new": new.eval_data},
    }
    return PlannedChange([change_of(reading, old, new)], new, "adapter.eval_policy", details=details)
