"""/admin/v1/adapters/…/evaluations: evaluations of versions, and whether a promotion needs one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from adapters.model import AdapterName
from gateway.api.admin.adapters import VersionName
from gateway.api.admin.common import Managed, Operator
from gateway.api.dependencies import Actor, Manager, StateDep
from gateway.batches.documents import Batch
from gateway.evaluations.documents import Evaluation, Metric, Plan
from gateway.operations import evaluations
from gateway.operations.transaction import Json
from gateway.schemas.base import StrictBody

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Managed])

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", examples=["9f86d081884c7d65" * 4])]
Id = Annotated[str, Path(max_length=40, pattern=r"^[!-~]+$", description="Like `eval_6f1c…`.")]


class NewEvaluation(StrictBody):
    data: str = Field(min_length=1, description="The held-out set: JSON Lines (docs/evaluation.md).")
    metric: Metric = Metric.EXACT
    against: str = Field(
        "",
        pattern=r"^(|base|live|v[1-9][0-9]{0,8})$",
        description="What it is compared with; empty: nothing.",
    )
    pattern: str = Field("", description="Of metric `regex`, found anywhere in an answer.")
    json_schema: str = Field("", description="Of metric `json-schema`: JSON, as text.")
    judge: str = Field("", max_length=200, description="Of metric `judge`: the adapter that judges.")
    judge_prompt: str = Field("", description="Of metric `judge`: what a good answer is.")
    threshold: float | None = Field(
        None,
        ge=0,
        le=1e9,
        allow_inf_nan=False,
        description="The lowest score that passes; for perplexity, the highest.",
    )
    no_worse_than: float | None = Field(
        None, ge=0, le=1e9, allow_inf_nan=False, description="By how much it may be worse than `against`."
    )
    max_tokens: int = Field(256, ge=1, le=4096)
    limit: int | None = Field(None, ge=1, description="Number of cases, from the first. Omitted: all.")


class EvalPolicy(StrictBody):
    require_eval: bool
    data_sha256: Sha256 | None = Field(None, description="Of which data; null: of any.")


@router.post("/{tenant}/{name}/versions/{version}/evaluations", status_code=201)
async def start(
    tenant: str, name: str, version: VersionName, body: NewEvaluation, state: StateDep, authority: Manager
) -> Json:
    """Evaluate a version: send it a held-out set at batch priority, and score its answers. It runs
    in the gateway; ask for the evaluation until `status` is `completed` or `failed`. The tokens are the
    tenant's."""
    plan = Plan(
        metric=body.metric,
        pattern=body.pattern,
        json_schema=body.json_schema,
        judge=body.judge,
        judge_prompt=body.judge_prompt,
        threshold=body.threshold,
        no_worse_than=body.no_worse_than,
        max_tokens=body.max_tokens,
        limit=body.limit,
    )
    asked = evaluations.Start(plan, body.data.encode(), body.against)
    made = await evaluations.start(state, _name(tenant, name), int(version[1:]), asked, authority=authority)
    return _one(made, None)


@router.get("/{tenant}/{name}/evaluations")
async def list_evaluations(
    tenant: str,
    name: str,
    state: StateDep,
    authority: Manager,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Json:
    """An adapter's evaluations, newest first, without examples, schemas and prompts."""
    found = await evaluations.listed(state, _name(tenant, name), limit, authority=authority)
    left_out = {"json_schema": None, "judge_prompt": None}
    return {"data": [evaluation.document() | left_out for evaluation in found]}


@router.get("/{tenant}/{name}/evaluations/{evaluation_id}")
async def show_evaluation(
    tenant: str, name: str, evaluation_id: Id, state: StateDep, authority: Manager
) -> Json:
    """One evaluation: its progress, its result, and the cases that got worse."""
    found, batch = await evaluations.get(state, _name(tenant, name), evaluation_id, authority=authority)
    return _one(found, batch)


@router.put("/{tenant}/{name}/evaluation-policy", dependencies=[Operator])
async def set_policy(tenant: str, name: str, body: EvalPolicy, state: StateDep, actor: Actor) -> Json:
    """Whether each promotion of this adapter requires that the version has passed its last evaluation.
    Rolling back does not."""
    adapter = await evaluations.set_policy(
        state,
        _name(tenant, name),
        required=body.require_eval,
        data_sha256=(body.data_sha256 or "") if body.require_eval else "",
        actor=actor,
    )
    return {
        "adapter": adapter.name,
        "require_eval": adapter.require_eval,
        "data_sha256": adapter.eval_data or None,
    }


def _one(evaluation: Evaluation, batch: Batch | None) -> Json:
    """`progress`: of the batch that runs, or ran last; null once it has been deleted."""
    whole = evaluation.document() | {"examples": evaluation.examples()}
    whole["batch"] = evaluation.judge_batch or evaluation.batch
    whole["progress"] = None
    if batch is not None:
        used = batch.document()
        whole["progress"] = used["request_counts"] | {"usage": used["usage"]}
    return whole


def _name(tenant: str, name: str) -> AdapterName:
    return AdapterName.parse(f"{tenant}/{name}")
