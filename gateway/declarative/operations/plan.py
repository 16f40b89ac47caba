"""What applying a document would change: `plan(current, document)`, pure.

Additions and changes come first, in the order in which one needs the other; then, with `prune`, what is not
in the file is removed, in the opposite order. The same two always give the same plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adapters.errors import ConflictError
from gateway.costs.periods import PeriodError
from gateway.costs.prices.book import PriceError
from gateway.costs.prices.jumps import UnconfirmedJumpError
from gateway.declarative.operations import resolve
from gateway.declarative.operations.actions import ApplyPlan, PlannedAction, compare
from gateway.declarative.operations.current import Current
from gateway.declarative.operations.document import Document
from gateway.declarative.operations.pruning import PRUNED, Gone, engines_moved, left_out, removals
from gateway.declarative.operations.resolve import DocumentRefusedError
from gateway.declarative.operations.selling import plan_selling
from gateway.declarative.operations.specs import AdapterSpec, EngineSpec, KeySpec, RemovedSpec
from gateway.declarative.schemas import Kind


def plan(
    current: Current,
    document: Document,
    *,
    prune: bool = False,
    asking: str = "",
    clock: int,
    confirmed: bool = True,
) -> ApplyPlan:
    """`asking`: id of the key that asks, which prunes itself for nobody. `clock`: Unix microseconds.
    `confirmed`: False refuses prices that may be slips, compared with those that stand: whoever writes a file
    sees all of its own."""
    now = current.document
    gone = left_out(now, document) if prune else {section: [] for section in PRUNED}
    moved = engines_moved(now, document, gone)
    compared = [*moved, *_additions(current, document, gone, clock, confirmed=confirmed)]
    if prune:
        compared += [a for a in removals(now, document, gone, asking) if a not in moved]
    compared += _each("removed", _counted(now, gone), _raised(now, document, gone), lambda _, __, spec: spec)
    actions = tuple(a for a in compared if a)
    return ApplyPlan(actions, len(compared) - len(actions))


def _additions(
    current: Current, document: Document, gone: Gone, clock: int, *, confirmed: bool
) -> list[PlannedAction | None]:
    """In the order in which one needs the other. None: unchanged."""
    now = current.document
    buried = {i: int(r.latest[1:]) for i, r in (now.removed or {}).items()}
    tenants = (now.tenants or {}).keys() | (document.tenants or {}).keys()

    def adapter(name: str, there: AdapterSpec | None, spec: AdapterSpec) -> AdapterSpec:
        return resolve.adapter(
            name,
            there,
            spec,
            retired=current.retired,
            buried=buried.get(name, 0),
            outcome=current.outcomes.get(name),
        )

    listed = document.engines or {}
    loading = {name: spec for name, spec in listed.items() if not spec.serves}
    merged = {name: spec for name, spec in listed.items() if spec.serves}
    engines, serving_one = (
        [
            _at_free_url(a, now, document, gone)
            for a in _each("engine", now.engines, part, lambda _, n, s: resolve.engine(n, s))
        ]
        for part in (loading, merged)
    )
    keys = _each("key", now.keys, document.keys, lambda _, n, s: resolve.key(n, s))
    adapters = _each("adapter", now.adapters, document.adapters, adapter)
    return [
        *_each("base", now.bases, document.bases, resolve.base),
        *engines,
        *_each("tenant", now.tenants, document.tenants, lambda _, n, s: resolve.tenant(n, s)),
        *(_with_own_secret(_owned(a, tenants), now) for a in keys),
        *(_owned(a, tenants) for a in adapters),
        *serving_one,
        *_prices(current, document, clock, confirmed=confirmed),
        *(_owned(a, tenants) for a in plan_selling(current.selling, document, clock, confirmed=confirmed)),
    ]


def _each(
    kind: Kind,
    now: dict[str, Any] | None,
    listed: dict[str, Any] | None,
    goal: Callable[[str, Any, Any], Any],
) -> list[PlannedAction | None]:
    there = now or {}
    actions: list[PlannedAction | None] = []
    for id_, spec in sorted((listed or {}).items()):
        try:
            actions.append(compare(kind, id_, there.get(id_), goal(id_, there.get(id_), spec)))
        except ConflictError as error:
            actions.append(PlannedAction("refuse", kind, id_, reason=str(error)))
    return actions


def _owned(action: PlannedAction | None, tenants: set[str]) -> PlannedAction | None:
    """Refuses what belongs to a tenant that neither is there nor comes with the file."""
    if action is None or action.verb == "refuse":
        return action
    missing = sorted(i for kind, i in action.needs if kind == "tenant" and i not in tenants)
    if not missing:
        return action
    reason = f"There is no tenant {missing[0]!r}: list it under tenants."
    return PlannedAction("refuse", action.kind, action.id, reason=reason)


def _with_own_secret(action: PlannedAction | None, now: Document) -> PlannedAction | None:
    if action is None or not isinstance(action.goal, KeySpec):
        return action
    for id_, other in (now.keys or {}).items():
        if other.secret == action.goal.secret and id_ != action.id:
            reason = f"Key {id_} has the same secret: each key needs its own."
            return PlannedAction("refuse", "key", action.id, reason=reason)
    return action


def _at_free_url(
    action: PlannedAction | None, now: Document, document: Document, gone: Gone
) -> PlannedAction | None:
    if action is None or not isinstance(action.goal, EngineSpec):
        return action
    for name, other in (now.engines or {}).items():
        leaves = name in gone["engines"] or name in (document.engines or {})
        if other.url == action.goal.url and name != action.id and not leaves:
            reason = f"Engine {name} is registered at {other.url} already."
            return PlannedAction("refuse", "engine", action.id, reason=reason)
    return action


def _raised(now: Document, document: Document, gone: Gone) -> dict[str, RemovedSpec]:
    """What the file says of removed adapters and is not known better. One that is there counts itself."""
    counted = _counted(now, gone)
    staying = (now.adapters or {}).keys() - gone["adapters"]
    return {
        name: spec
        for name, spec in (document.removed or {}).items()
        if name not in staying
        and (name not in counted or int(counted[name].latest[1:]) <= int(spec.latest[1:]))
    }


def _counted(now: Document, gone: Gone) -> dict[str, RemovedSpec]:
    """The numbers of adapters that are not there, or will not be."""
    leaving = {
        i: RemovedSpec.model_construct(latest=a.latest)
        for i in gone["adapters"]
        if (a := (now.adapters or {})[i]).latest is not None
    }
    return {**(now.removed or {}), **leaving}


def _prices(
    current: Current, document: Document, clock: int, *, confirmed: bool
) -> list[PlannedAction | None]:
    standing = current.document.prices or ()
    book = list(standing)
    actions: list[PlannedAction | None] = []
    for price in document.prices or ():
        where = f"{price.region} {price.purchase}".strip()
        id_ = f"{price.gpu_type} {where} from {price.valid_from or 'now'}"
        try:
            new = resolve.price(book, price, clock)
            if new is not None and not confirmed:
                resolve.check_price(standing, new, clock)
        except UnconfirmedJumpError as error:
            actions.append(
                PlannedAction("refuse", "price", id_, reason=str(error), code="confirmation_required")
            )
            continue
        except (DocumentRefusedError, PriceError, PeriodError) as error:
            actions.append(PlannedAction("refuse", "price", id_, reason=str(error)))
            continue
        if new is None:
            actions.append(None)
            continue
        book.append(new)
        actions.append(compare("price", id_, None, new))
    return actions
