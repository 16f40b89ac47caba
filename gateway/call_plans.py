"""What is the same for all calls of a key to a model at an endpoint, worked out once.

A plan is made again whenever anything that it comes from has changed: a tenant or a key, an adapter, a
version, an engine. Three things are never in it, because they differ from one request to the next: whether
the key is revoked or has expired, which arm of a canary serves the request, and the tenant's salt while a new
secret takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.registry.catalog import Catalog, Target
from gateway.dataplane.request import Endpoint, Sold
from gateway.errors import FlorinError
from gateway.routing.query_of_death import Group
from gateway.routing.queue_ticket import LEVELS
from gateway.routing.router import Router
from gateway.tenants.directory import Directory, Key, Tenant
from gateway.tenants.engine_requirements import engine_requirements
from gateway.tenants.scopes import covers

_MOST = 10_000
"""Plans that are cached; beyond that, all are dropped."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    key: Key
    tenant: Tenant
    target: Target
    sold: Sold
    engine_name: str
    """The target's name on engines, as the two next are for people and for headers."""
    label: str
    header: tuple[bytes, bytes]
    requires: Mapping[str, str]
    """Labels that an engine must have."""
    context: int
    """Most tokens of a prompt and its answer that an engine of the fleet takes; 0: not known of all."""
    cost_centre: str | None
    """That of an adapter is its owner's business: it does not label the usage of tenants that share it."""
    cache_owner: str
    """Whose prefix cache it uses: that of a tenant, or of tenants that share one, for one version. Engines
    tell versions apart themselves; caches outside of them may not."""
    level: int
    """The key's class in the fair queue."""
    group: Group
    what: str
    """With the group and the payload: how to recognize the request if engines die of it."""
    canary: CallPlan | None = None
    """That of the calls that get the canary."""

    def for_call(self, user: str) -> CallPlan:
        """The plan of one request, for all its attempts. Call it once per request."""
        drawn = self.target.for_call(self.key.tenant, user)
        return self if drawn is self.target or self.canary is None else self.canary


class CallPlans:
    """Mutable: the plans of the present state of the registry. On the worker's event loop only."""

    def __init__(self, directory: Directory, catalog: Catalog, router: Router) -> None:
        self._directory = directory
        self._catalog = catalog
        self._router = router
        self._plans: dict[tuple[str, str, str], CallPlan] = {}
        self._generation = (-1, -1, -1)

    def __repr__(self) -> str:
        return f"<CallPlans {len(self._plans)}>"

    def of(self, key: Key, endpoint: Endpoint, model: str) -> CallPlan:
        """Raises FlorinError if the model is not there for this key, or not for this endpoint."""
        generation = self._directory.generation, self._catalog.generation, self._catalog.engine_changes
        if generation != self._generation or len(self._plans) > _MOST:
            self._plans.clear()
            self._generation = generation
        plan = self._plans.get((key.id, endpoint.path, model))
        if plan is None or plan.key is not key:  # keys of people and of evaluations are in no directory
            plan = self._plan(key, endpoint, self.resolve(key, model))
            self._plans[key.id, endpoint.path, model] = plan
        return plan

    def resolve(self, key: Key, model: str) -> Target:
        """Resolve a model name. Foreign and unknown names, and those out of the key's scopes, get the same
        error."""
        tenant = self._directory.tenants.get(key.tenant)
        target = None
        if tenant is not None:
            base = tenant.base_access or key.evaluates
            target = self._catalog.resolve(tenant.name, model, base_access=base)
        if target is None or not covers(key, target.version.adapter if target.version else ""):
            raise model_not_found(model)
        return target

    def cost_centre(self, key: Key, target: Target) -> str | None:
        version = target.version
        own = (
            self._catalog.adapters.get(version.adapter) if version and version.tenant == key.tenant else None
        )
        return self._directory.cost_centre(key, own.cost_centre if own else "")

    def _plan(self, key: Key, endpoint: Endpoint, target: Target) -> CallPlan:
        tenant, engine_name, label = self._directory.tenants[key.tenant], target.engine_name, target.label
        adapter = target.version.adapter if target.version else ""
        requires = engine_requirements(self._directory, self._catalog, key.tenant, target.owner)
        if endpoint.task is not None:
            requires = self._router.require_task(target, requires, endpoint.task, endpoint.path)
        return CallPlan(
            key,
            tenant,
            target,
            Sold(adapter, target.base_model, task=endpoint.task or "generate"),
            engine_name,
            label,
            (b"x-florin-adapter", label.encode()),
            requires,
            self._router.context(target),
            self.cost_centre(key, target),
            f"{_cache_group(tenant)} {engine_name}",
            LEVELS[key.priority],
            (key.tenant, adapter),
            f"{endpoint.route} {engine_name}",
            None if target.canary is None else self._plan(key, endpoint, target.canary),
        )


def _cache_group(tenant: Tenant) -> str:
    return f"group/{tenant.cache_group}" if tenant.cache_group else tenant.name  # no name has a slash


def model_not_found(model: str) -> FlorinError:
    shown = model if len(model) <= 200 else model[:200] + "…"
    return FlorinError(
        "model_not_found",
        f"The model '{shown}' does not exist or you do not have access to it.",
        param="model",
    )
