"""/admin/v1/adapters/…/evaluations: evaluations of versions, and whether a promotion needs one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from adapters.model import AdapterName
from gateway.api.admin_requests import Managed, Operator
from gateway.api.dependencies import Actor, Manager, StateDep
from gateway.batches.documents import Batch
from gateway.evaluations import documents
from gateway.evaluations import operations as evaluations
from gateway.evaluations.documents import EvaluationPlan
from gateway.evaluations.schemas import (
    EvalPolicy,
    EvalPolicyAnswer,
    Evaluation,
    ListedEvaluation,
    NewEvaluation,
)
from gateway.fleet.adapters.schemas.adapters import VersionName
from gateway.schemas.base import Listed

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Managed])

Id = Annotated[str, Path(max_length=40, pattern=r"^[!-~]+$", description="Like `eval_6f1c…`.")]


@router.post(
    "/{tenant}/{name}/versions/{version}/evaluations", status_code=201, response_model_exclude_unset=True
)
async def start(
    tenant: str, name: str, version: VersionName, body: NewEvaluation, state: StateDep, authority: Manager
) -> Evaluation:
    """Evaluate a version: send it a held-out set at batch priority, and score its answers. It runs
    in the gateway; ask for the evaluation until `status` is `completed` or `failed`. The tokens are the
    tenant's."""
    plan = EvaluationPlan(**body.model_dump(exclude={"data", "against"}))
    request = evaluations.Start(plan, body.data.encode(), body.against)
    started = await evaluations.start(
        state, _name(tenant, name), int(version[1:]), request, authority=authority
    )
    return _answer(started, None)


@router.get("/{tenant}/{name}/evaluations", response_model_exclude_unset=True)
async def list_evaluations(
    tenant: str,
    name: str,
    state: StateDep,
    authority: Manager,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Listed[ListedEvaluation]:
    """An adapter's evaluations, newest first, without examples, schemas and prompts."""
    newest = await evaluations.listed(state, _name(tenant, name), limit, authority=authority)
    left_out = {"json_schema": None, "judge_prompt": None}
    return Listed(data=[ListedEvaluation.model_validate(e.document() | left_out) for e in newest])


@router.get("/{tenant}/{name}/evaluations/{evaluation_id}", response_model_exclude_unset=True)
async def show_evaluation(
    tenant: str, name: str, evaluation_id: Id, state: StateDep, authority: Manager
) -> Evaluation:
    """One evaluation: its progress, its result, and the cases that got worse."""
    stored, batch = await evaluations.get(state, _name(tenant, name), evaluation_id, authority=authority)
    return _answer(stored, batch)


@router.put("/{tenant}/{name}/evaluation-policy", dependencies=[Operator])
async def set_policy(
    tenant: str, name: str, body: EvalPolicy, state: StateDep, actor: Actor
) -> EvalPolicyAnswer:
    """Whether each promotion of this adapter requires that the version has passed its last evaluation.
    Rolling back does not."""
    adapter = await evaluations.set_policy(
        state,
        _name(tenant, name),
        required=body.require_eval,
        data_sha256=(body.data_sha256 or "") if body.require_eval else "",
        actor=actor,
    )
    return EvalPolicyAnswer(
        adapter=adapter.name, require_eval=adapter.require_eval, data_sha256=adapter.eval_data or None
    )


def _answer(evaluation: documents.Evaluation, batch: Batch | None) -> Evaluation:
    progress = None
    if batch is not None:
        shown = batch.document()
        progress = shown["request_counts"] | {"usage": shown["usage"]}
    more = {
        "examples": evaluation.examples(),
        "batch": evaluation.judge_batch or evaluation.batch,
        "progress": progress,
    }
    return Evaluation.model_validate(evaluation.document() | more)


def _name(tenant: str, name: str) -> AdapterName:
    return AdapterName.parse(f"{tenant}/{name}")
