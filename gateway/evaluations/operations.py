"""Evaluate versions, and say whether one may be promoted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

import orjson

from adapters.errors import NotFoundError
from adapters.model import Adapter, AdapterName, Version
from adapters.registry.catalog import Target
from adapters.registry.changes.settings import plan_eval_policy
from gateway.batches.documents import Batch
from gateway.errors import FlorinError
from gateway.evaluations.batch_files import write_batch
from gateway.evaluations.cases import BadDataError, Case, read_cases
from gateway.evaluations.documents import (
    REFERENCED,
    Evaluation,
    EvaluationPlan,
    EvaluationStatus,
    Metric,
    new_evaluation_id,
)
from gateway.evaluations.judging import MOST_PROMPT
from gateway.evaluations.requests import AGAINST, CANDIDATE, CHAT, answer_lines, endpoint_of
from gateway.evaluations.schemas import LastEvaluation
from gateway.evaluations.scoring import BadPlanError, check_of
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.operations.authorization import Authority, no_adapter
from gateway.operations.state import State
from gateway.operations.transaction import catch_up
from gateway.tenants.directory import Key, Tenant, evaluation_key_id
from gateway.tenants.scopes import check_endpoint
from gateway.units import DAY

_NEEDS: Final = {"pattern": Metric.REGEX, "json_schema": Metric.JSON_SCHEMA, "judge": Metric.JUDGE}
"""A plan's field → the metric that has it, and cannot do without."""


@dataclass(frozen=True, slots=True)
class Start:
    """A request to start an evaluation."""

    plan: EvaluationPlan
    data: bytes
    against: str
    """`v1`, `live` or `base`; empty: nothing."""


async def start(
    state: State, name: AdapterName, number: int, request: Start, *, authority: Authority
) -> Evaluation:
    """Start an evaluation; the gateway goes on with it by itself. Its requests are the tenant's: they run
    under its limits and are billed to it. Raises NotFoundError, FlorinError, LedgerUnavailableError."""
    adapter, tenant = _find(state, name, authority)
    version = _version(state, name, number)
    key = _key(state, authority, tenant)
    asker = authority.key or key  # the evaluation may call only what the requester may
    against = _against(state, adapter, version, request.against, asker)
    plan = _checked(state, request, against, asker)
    cases, digest = await state.batches.in_thread(_read, request.data, plan)
    if plan.metric is Metric.PERPLEXITY:
        _check_scoring(state, cases, [Target(version, version.base_model), against])
    check_endpoint(asker, endpoint_of(cases))
    if plan.judge:
        check_endpoint(asker, CHAT)
    now = state.clock.now()
    evaluation = Evaluation(
        id=new_evaluation_id(),
        tenant=tenant.name,
        tenant_since=tenant.created,
        adapter=str(name),
        version=number,
        digest=version.digest,
        against=against.label if against else "",
        against_digest=against.version.digest if against and against.version else "",
        plan=orjson.dumps(asdict(plan)).decode(),
        data_sha256=digest,
        cases=len(cases),
        status=EvaluationStatus.ANSWERING.value,
        key_id=key.id,
        actor=authority.actor,
        created_at=now,
    )
    models = [(CANDIDATE, version.id), *([(AGAINST, against.label)] if against else ())]
    stored = await state.batches.in_thread(_create, state, evaluation, request.data, cases, models, plan)
    state.evaluations.look()
    return stored


async def listed(state: State, name: AdapterName, limit: int, *, authority: Authority) -> list[Evaluation]:
    """Newest first. Raises NotFoundError, LedgerUnavailableError."""
    _, tenant = _find(state, name, authority)
    return await state.batches.in_thread(state.evaluations.store.list, str(name), tenant.created, limit)


async def get(
    state: State, name: AdapterName, evaluation_id: str, *, authority: Authority
) -> tuple[Evaluation, Batch | None]:
    """With its batch that runs, or ran last. Raises NotFoundError, LedgerUnavailableError."""
    _, tenant = _find(state, name, authority)
    store = state.evaluations.store
    stored = await state.batches.in_thread(store.get, str(name), tenant.created, evaluation_id)
    if stored is None:
        raise NotFoundError(f"{name} has no evaluation {evaluation_id[:80]!r}.")
    return stored


async def latest(state: State, adapter: Adapter) -> dict[int, LastEvaluation]:
    """Version → what its page shows of its last evaluation; nothing while the ledger is away."""
    tenant = state.directory.tenants.get(adapter.name.partition("/")[0])
    if tenant is None:
        return {}
    store = state.evaluations.store
    try:
        last = await state.batches.in_thread(store.latest, adapter.name, tenant.created)
    except LedgerUnavailableError:
        return {}
    return {number: LastEvaluation.model_validate(evaluation.brief()) for number, evaluation in last.items()}


async def set_policy(
    state: State, name: AdapterName, *, required: bool, data_sha256: str, actor: str
) -> Adapter:
    """Whether a version of this adapter needs a passing evaluation before it gets calls, and of which data.
    Raises NotFoundError."""
    plan = partial(plan_eval_policy, name=name, required=required, data_sha256=data_sha256)
    adapter = await state.registrar.change(name, actor, plan)
    await catch_up(state)
    return adapter


async def check_promotion(
    state: State, name: AdapterName, number: int, *, required: bool = False, data_sha256: str = ""
) -> None:
    """Raises FlorinError if the caller (`required`) or the adapter's policy requires a passing evaluation and
    the last one of exactly these files, on `data_sha256` and the policy's data, is none; and
    LedgerUnavailableError. What is live already stays callable, whatever the policy."""
    adapter = state.catalog.adapters.get(str(name))
    version = state.catalog.versions.get(f"{name}@v{number}")
    if adapter is None or version is None:
        return  # the promotion itself says so
    data_sets = {data_sha256} if required else set()
    if adapter.require_eval and number != adapter.live:
        data_sets.add(adapter.eval_data)
    for data in sorted(data_sets):
        await _check_passed(state, version, data)


async def _check_passed(state: State, version: Version, data_sha256: str) -> None:
    tenant = state.directory.tenants.get(version.tenant)
    evaluation = None
    if tenant is not None:
        evaluation = await state.batches.in_thread(
            state.evaluations.store.deciding,
            version.adapter,
            tenant.created,
            version=version.number,
            digest=version.digest,
            data_sha256=data_sha256,
        )
    if evaluation is not None and evaluation.passed:
        return
    which = f" on the data {data_sha256[:12]}…" if data_sha256 else ""
    reason = (
        f"the last one{which}, {evaluation.id}, did not"
        if evaluation
        else f"there is none{which} with a criterion"
    )
    raise FlorinError(
        "evaluation_required",
        f"{version.id} must pass an evaluation before it is promoted, and {reason}. Nothing has changed.",
    )


# -- the parts of `start`


def _find(state: State, name: AdapterName, authority: Authority) -> tuple[Adapter, Tenant]:
    authority.check_adapter(name)
    adapter, tenant = state.catalog.adapters.get(str(name)), state.directory.tenants.get(name.tenant)
    if adapter is None or tenant is None:
        raise no_adapter(name)
    return adapter, tenant


def _version(state: State, name: AdapterName, number: int | None) -> Version:
    version = state.catalog.versions.get(f"{name}@v{number}")
    if version is None or version.retired is not None:
        raise NotFoundError(f"There is no callable version v{number} of adapter {str(name)!r}.")
    return version


def _key(state: State, authority: Authority, tenant: Tenant) -> Key:
    """The key that it runs under: the administrator's own, with its limits and scopes. For an operator, and
    for a person who signed in and whose rights may end before it does, one of the tenant's."""
    if authority.key is not None and not authority.key.is_person:
        return authority.key
    key = state.directory.batch_key(evaluation_key_id(tenant))
    if key is None:
        raise NotFoundError(f"There is no tenant {tenant.name!r}.")
    return key


def _against(state: State, adapter: Adapter, version: Version, reference: str, key: Key) -> Target | None:
    if not reference:
        return None
    if reference == "base":
        base = state.lifecycle.plans.resolve(key, version.base_model)
        if base.version is not None:
            message = f"{base.version.adapter} has the base model's name, {version.base_model}, and hides it."
            raise FlorinError("invalid_value", message, param="against")
        return base
    if reference == "live" and adapter.live is None:
        raise FlorinError("invalid_value", f"{adapter.name} has no live version.", param="against")
    number = adapter.live if reference == "live" else int(reference[1:])
    other = _version(state, AdapterName.parse(adapter.name), number)
    if other.number == version.number:
        raise FlorinError("invalid_value", f"{version.id} cannot be compared with itself.", param="against")
    return Target(other, other.base_model)


def _checked(state: State, request: Start, against: Target | None, key: Key) -> EvaluationPlan:
    """The plan, with the judge's version. Raises FlorinError."""
    plan = request.plan
    if plan.no_worse_than is not None and against is None:
        raise _wrong("no_worse_than", "`no_worse_than` needs a model to compare with: set `against`.")
    for field, metric in _NEEDS.items():
        if bool(getattr(plan, field)) != (plan.metric is metric):
            raise _wrong(field, f"`{field}` belongs to metric `{metric.value}`, which requires it.")
    if plan.metric is not Metric.JUDGE:
        if plan.judge_prompt:
            raise _wrong("judge_prompt", "`judge_prompt` belongs to metric `judge`.")
        try:
            check_of(plan)
        except BadPlanError as bad:
            raise _wrong(bad.param, str(bad)) from None
        return plan
    if not 0 < len(plan.judge_prompt.strip()) <= MOST_PROMPT:
        raise _wrong("judge_prompt", f"`judge_prompt` must have 1 to {MOST_PROMPT:,} characters.")
    return replace(plan, judge=state.lifecycle.plans.resolve(key, plan.judge).label)


def _read(data: bytes, plan: EvaluationPlan) -> tuple[list[Case], str]:
    try:
        cases = read_cases(data, references=plan.metric in REFERENCED, limit=plan.limit)
    except BadDataError as bad:
        raise _wrong("data", str(bad)) from None
    return cases, hashlib.sha256(data).hexdigest()


def _check_scoring(state: State, cases: list[Case], targets: Iterable[Target | None]) -> None:
    if cases[0].chat:
        raise _wrong("metric", "Metric `perplexity` needs data of the format `prompt` and `completion`.")
    for target in targets:
        if target is not None:
            try:
                state.router.require_scoring(target, {}, Metric.PERPLEXITY)
            except FlorinError as error:
                raise _wrong("metric", error.message, code=error.code) from None


def _create(
    state: State,
    evaluation: Evaluation,
    data: bytes,
    cases: list[Case],
    models: list[tuple[str, str]],
    plan: EvaluationPlan,
) -> Evaluation:
    files = state.batches.files
    batch = write_batch(
        files,
        answer_lines(cases, models, plan),
        evaluation=evaluation.id,
        tenant=evaluation.tenant,
        since=evaluation.tenant_since,
        key_id=evaluation.key_id,
        endpoint=endpoint_of(cases),
        now=evaluation.created_at,
        keep=state.settings.file_retention_days * DAY,
    )
    started = replace(evaluation, batch=batch.id)
    try:
        state.evaluations.store.create(started, data, batch)
    except FlorinError:
        files.discard(batch.input_file)
        raise
    return started


def _wrong(param: str, message: str, *, code: str = "invalid_value") -> FlorinError:
    return FlorinError(code, message, param=param)
