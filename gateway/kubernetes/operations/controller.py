"""Brings the registry to what the resources say, and shows in them what came of it.

All resources that are due are looked at together: whatever their number, one pass asks the gateway once what
it would change, and once what there is. Then each is acted on by itself, so that an adapter of gigabytes
holds up no other. `decisions` says what is done, `Inventory` when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from pydantic import ValidationError

from gateway.declarative.schemas import Action
from gateway.kubernetes.api_server import ApiServer, ApiServerError
from gateway.kubernetes.inventory import Inventory
from gateway.kubernetes.operations import decisions
from gateway.kubernetes.operations.decisions import Apply, Claim, Release, Remove, Show, Step, after_asking
from gateway.kubernetes.operations.definitions import Status, pool, shown
from gateway.kubernetes.operations.observation import Fleet, invalid_pool, pool_status, status
from gateway.kubernetes.resource import FINALIZER, PLURALS, Finding, Json, Key, Kind, Resource
from gateway.kubernetes.watching import follow

log = logging.getLogger(__name__)

RESYNC_SECONDS = 60.0
_GATHER_SECONDS = 0.1
"""What comes together is looked at together."""
_AT_ONCE = 4
"""Adapters that are applied or removed at a time; the gateway itself fetches as many."""
_NOT_FOUND, _CONFLICT = 404, 409


class GatewayError(Exception):
    """The gateway refuses, or does not answer; the message is a sentence."""

    def __init__(self, reason: str, message: str, *, passes: bool) -> None:
        """`reason`: of a condition. `passes`: by itself."""
        super().__init__(message)
        self.finding = Finding(reason, message, "reconciling" if passes else "stalled", synced=False)


@dataclass(frozen=True, slots=True)
class LookAtPool:
    """A pool is only looked at."""


class Gateway(Protocol):
    """The admin API. Its methods block, and raise GatewayError."""

    def plan(self, document: Json) -> Sequence[Action]:
        """What `apply` would change."""

    def apply(self, document: Json) -> Sequence[Action]: ...

    def remove(self, kind: Kind, id_: str) -> None:
        """A tenant or an adapter. One that is not there is not an error."""

    def fleet(self) -> Fleet: ...


class Controller:
    """Mutable: the inventory, what the gateway last said, drift that is yet to be shown. On one event
    loop."""

    def __init__(
        self, server: ApiServer, gateway: Gateway, *, resync: float = RESYNC_SECONDS, pause: float = 1.0
    ) -> None:
        """`pause`: seconds after which the API server is asked again."""
        self._server = server
        self._gateway = gateway
        self._pause = pause
        self._inventory = Inventory(asyncio.get_running_loop().time, resync=resync)
        self._fleet = Fleet()
        self._corrected: dict[Key, tuple[str, ...]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind in PLURALS:
                tasks.create_task(follow(self._server, kind, self._inventory, pause=self._pause))
            while True:
                await self._inventory.wait()
                await asyncio.sleep(_GATHER_SECONDS)
                await self._look(tasks)

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        due = self._inventory.due()
        for resource in due:
            self._inventory.look_later(resource.key)  # unless what is done says otherwise
        try:
            self._fleet = await asyncio.to_thread(self._gateway.fleet)
            steps = await self._steps([r for r in due if r.kind != "EnginePool"])
        except GatewayError as error:
            await self._no_answer(due, error)
            return
        steps = await self._apply_tenants(steps)
        pools = [self._act(r, LookAtPool()) for r in due if r.kind == "EnginePool"]
        tenants = [self._act(r, step) for r, step in steps if r.kind == "Tenant"]
        await asyncio.gather(*pools, *tenants)  # adapters need their tenants
        for resource, step in steps:
            if resource.kind == "LoraAdapter":
                self._inventory.acting.add(resource.key)
                tasks.create_task(self._act_in_turn(resource, step))

    async def _apply_tenants(self, steps: list[tuple[Resource, Step]]) -> list[tuple[Resource, Step]]:
        """Changes tenants in one call, since none takes long. Returns what is left to do: those that fail,
        too, each by itself, which shows why."""
        tenants = [(r, step) for r, step in steps if r.kind == "Tenant" and isinstance(step, Apply)]
        if len(tenants) <= 1:
            return steps
        try:
            document = decisions.document([r for r, _ in tenants])
            outcomes = decisions.by_object(await asyncio.to_thread(self._gateway.apply, document))
        except GatewayError:
            return steps
        applied = set()
        for resource, step in tenants:
            if all(action.outcome == "done" for action in outcomes.get((resource.kind, resource.id), ())):
                self._applied(resource, step.drift)
                applied.add(resource.key)
        return [(r, step) for r, step in steps if r.key not in applied]

    async def _steps(self, due: Sequence[Resource]) -> list[tuple[Resource, Step]]:
        """Raises GatewayError."""
        owners = decisions.owners(self._inventory.resources.values())
        early = [(r, decisions.before_asking(r, owners[r.kind, r.id])) for r in due]
        asking = [r for r, step in early if step is None]
        plans = await self._planned(asking)
        steps: list[tuple[Resource, Step]] = [(r, step) for r, step in early if step is not None]
        for resource in asking:
            actions = plans[resource.key]
            if isinstance(actions, Finding):
                steps.append((resource, Show(actions, retry=True)))
            else:
                steps.append((resource, after_asking(resource, actions, self._fleet.finding(resource))))
        return steps

    async def _planned(self, resources: Sequence[Resource]) -> dict[Key, Sequence[Action] | Finding]:
        """What the gateway would change of each, or why it refuses to say. Raises GatewayError."""
        if not resources:
            return {}
        try:
            actions = await asyncio.to_thread(self._gateway.plan, decisions.document(resources))
        except GatewayError as error:
            if error.finding.phase == "reconciling":
                raise
            if len(resources) == 1:
                return {resources[0].key: error.finding}
            # One that this version takes, and the gateway's does not, must not hold up the others.
            return {key: plan for r in resources for key, plan in (await self._planned([r])).items()}
        by_object = decisions.by_object(actions)
        return {r.key: by_object.get((r.kind, r.id), ()) for r in resources}

    async def _no_answer(self, due: Sequence[Resource], error: GatewayError) -> None:
        """What is known of resources at rest stays: that the gateway is away for a minute changes none of
        them."""
        log.warning("%s Trying again", error)
        for resource in due:
            observed = resource.status.get("observedGeneration") == resource.generation
            if resource.kind != "EnginePool" and (resource.deleting or not observed):
                await self._act(resource, Show(error.finding))
            self._inventory.retry(resource.key)

    async def _act_in_turn(self, resource: Resource, step: Step) -> None:
        slow = isinstance(step, Apply | Remove)
        try:
            async with self._places if slow else nullcontext():
                await self._act(resource, step)
        finally:
            self._inventory.done(resource.key)

    async def _act(self, resource: Resource, step: Step | LookAtPool) -> None:
        try:
            try:
                await self._carry_out(resource, step)
            except GatewayError as error:
                self._inventory.retry(resource.key)
                await self._show(resource, error.finding)
        except ApiServerError as error:
            await self._missed(resource, error)

    async def _carry_out(self, resource: Resource, step: Step | LookAtPool) -> None:
        """Raises GatewayError, ApiServerError."""
        match step:
            case LookAtPool():
                await self._look_at_pool(resource)
            case Claim():
                await self._finalize(resource, [*resource.finalizers, FINALIZER])
            case Release():
                await self._finalize(resource, [f for f in resource.finalizers if f != FINALIZER])
            case Remove():
                await asyncio.to_thread(self._gateway.remove, resource.kind, resource.id)
                log.info("%s %s: removed", resource.kind, resource.id)
                await self._finalize(resource, [f for f in resource.finalizers if f != FINALIZER])
            case Apply():
                await self._apply(resource, step.drift)
            case Show():
                (self._inventory.retry if step.retry else self._inventory.rest)(resource.key)
                await self._show(resource, step.finding, step.drift)

    async def _apply(self, resource: Resource, drift: tuple[str, ...]) -> None:
        """Raises GatewayError, ApiServerError."""
        if not resource.synced:
            finding = Finding("Applying", "The registry is being changed.", "reconciling", synced=False)
            resource = await self._show(resource, finding)
        actions = await asyncio.to_thread(self._gateway.apply, decisions.document([resource]))
        failed = next((action for action in actions if action.outcome != "done"), None)
        if failed is not None:
            self._inventory.retry(resource.key)
            await self._show(resource, decisions.refusal(failed))
            return
        self._applied(resource, drift)

    def _applied(self, resource: Resource, drift: tuple[str, ...]) -> None:
        if drift:
            log.warning("%s %s had been changed: %s", resource.kind, resource.id, "; ".join(drift))
            self._corrected[resource.key] = drift
        else:
            log.info("%s %s: applied", resource.kind, resource.id)
        self._inventory.look_after_change(resource.key)
        if resource.kind == "Tenant":
            self._inventory.look_at_adapters(resource.id)

    async def _show(self, resource: Resource, finding: Finding, drift: tuple[str, ...] = ()) -> Resource:
        """The resource with its new status. Raises ApiServerError."""
        corrected = self._corrected.get(resource.key, ())
        new = status(
            resource, finding, self._fleet, now=_now(), drift=corrected or drift, corrected=bool(corrected)
        )
        resource = await self._put_status(resource, new)
        self._corrected.pop(resource.key, None)
        return resource

    async def _look_at_pool(self, resource: Resource) -> None:
        """Raises ApiServerError."""
        try:
            new = pool_status(resource, pool(resource), self._fleet, now=_now())
        except ValidationError as error:
            new = invalid_pool(resource, error, now=_now())
        await self._put_status(resource, new)

    async def _put_status(self, resource: Resource, new: Status) -> Resource:
        body = shown(new)
        if {name: value for name, value in body.items() if value is not None} == resource.status:
            return resource
        changed = await self._server.patch(resource, {"status": body}, status=True)
        self._inventory.update(changed)
        return changed

    async def _finalize(self, resource: Resource, finalizers: Sequence[str]) -> None:
        self._inventory.update(
            await self._server.patch(resource, {"metadata": {"finalizers": list(finalizers)}})
        )

    async def _missed(self, resource: Resource, error: ApiServerError) -> None:
        """The resource has changed or gone meanwhile, or the API server does not answer."""
        try:
            if error.status == _CONFLICT:
                self._inventory.update(await self._server.get(resource.kind, resource.name))
                self._inventory.look_now(resource.key)
                return
        except ApiServerError as second:
            error = second
        if error.status == _NOT_FOUND:
            self._inventory.forget(resource)
            return
        log.warning("%s %s: %s Trying again", resource.kind, resource.name, error)
        self._inventory.retry(resource.key)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
