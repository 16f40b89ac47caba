"""An adapter's evaluations: all, one with its progress, and starting another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.datastructures import UploadFile
from starlette.responses import Response

from gateway.console.api_client import ApiError, Json
from gateway.console.pages.adapters import rows
from gateway.console.pages.adapters.common import (
    adapter,
    api_of,
    command,
    decimal,
    full_name,
    known,
    page_of,
    tabs,
    whole,
    wrong,
)
from gateway.console.tables import Cell, Column
from gateway.console.visit import MANAGERS, Route, Visit
from gateway.evaluations.schemas import Evaluation, ListedEvaluation, Result
from gateway.schemas.base import Listed

_MOST_BYTES: Final = 17 * 1024 * 1024
"""The limit on the form: a held-out set as large as the API takes, and the fields."""
_METRICS: Final = [
    ("exact", "Exact: the answer is the expected one"),
    ("regex", "Pattern: the answer contains a match"),
    ("json-schema", "JSON Schema: the answer is valid"),
    ("perplexity", "Perplexity: how likely the expected text is"),
    ("judge", "Judge: another adapter gives a score"),
]
_OPEN: Final = {"answering", "judging"}


def _columns(name: str) -> list[Column]:
    return [
        Column("id", "Evaluation", lambda e: Cell(e.id, href=page_of(name, "evaluations", e.id))),
        Column("version", "Version", lambda e: e.version),
        Column("result", "Result", _ended, "badge"),
        Column("against", "Compared with", lambda e: e.against),
        Column("cases", "Cases", lambda e: e.cases, "number"),
        Column("data", "Data", lambda e: Cell(e.data_sha256, text=e.data_sha256[:12]), "code"),
        Column("started", "Started", lambda e: e.created, "time"),
        Column("by", "By", lambda e: e.by),
    ]


def _ended(evaluation: ListedEvaluation) -> Cell:
    return rows.evaluation_cell(evaluation, evaluation.result.score if evaluation.result else None)


async def evaluations(visit: Visit) -> Response:
    name = full_name(visit)
    listed = await visit.api.get(api_of(name, "evaluations"), Listed[ListedEvaluation], limit=1000)
    table = visit.table(_columns(name), list(listed.data))
    return visit.export(table, "evaluations") or visit.page(
        "adapter_evaluations.html.j2",
        adapter=await adapter(visit),
        name=name,
        table=table,
        any=bool(listed.data),
        tabs=tabs(visit, name),
        cli=command("adapter", "evals", name),
    )


async def new(visit: Visit) -> Response:
    name = full_name(visit)
    details = await adapter(visit)
    versions = list(reversed(details.versions))
    others = [("", "Nothing"), ("live", "The live version"), ("base", "The base model")]
    canary = details.canary.version if details.canary else None
    newest = next((v for v in versions if v != details.live), details.live)
    chosen = visit.query.get("version") or canary or newest
    return visit.page(
        "adapter_evaluate.html.j2",
        adapter=details,
        name=name,
        versions=[(v, v) for v in versions],
        chosen=chosen,
        against=[*others, *((v, v) for v in versions)],
        metrics=_METRICS,
        tabs=tabs(visit, name),
        cli=command("adapter", "eval", f"{name}@{chosen}", "--data", "held-out.jsonl", "--against", "live"),
    )


def plan(text: Callable[[str], str], data: str) -> Json:
    """The body of a new evaluation, from the fields of its form. Raises ApiError. Pure."""
    if not data.strip():
        raise wrong("data", "Cases: choose a file, or paste lines of JSON.")
    metric = text("metric") or "exact"
    only = {"regex": ("pattern",), "json-schema": ("json_schema",), "judge": ("judge", "judge_prompt")}
    return known(
        {
            "data": data,
            "metric": metric,
            "against": text("against"),
            **{field: text(field) for field in only.get(metric, ())},
            "threshold": decimal(text("threshold"), "threshold", "Least score"),
            "no_worse_than": decimal(text("no_worse_than"), "no_worse_than", "No worse than"),
            "max_tokens": whole(text("max_tokens"), "max_tokens", "Most tokens"),
            "limit": whole(text("limit"), "limit", "Cases used"),
        }
    )


async def start(visit: Visit) -> Response:
    name = full_name(visit)
    length = visit.request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or int(length) > _MOST_BYTES:
        raise ApiError(413, "body_too_large", f"The cases may have up to {_MOST_BYTES:,} bytes.")
    async with visit.request.form(max_files=1, max_fields=50, max_part_size=_MOST_BYTES) as visit.form:
        body = plan(visit.text, await _cases(visit))
    version = visit.text("version")
    started = await visit.api.post(api_of(name, "versions", version, "evaluations"), body, Evaluation)
    return visit.see(
        page_of(name, "evaluations", started.id), f"The evaluation of {name}@{version} has begun."
    )


async def _cases(visit: Visit) -> str:
    """The cases from the file, or those pasted. Raises ApiError."""
    file = visit.form.get("file")
    if not (isinstance(file, UploadFile) and file.size):
        return visit.text("data")
    try:
        return (await file.read()).decode()
    except UnicodeDecodeError:
        raise wrong("data", "Cases: the file is not text in UTF-8.") from None


async def evaluation(visit: Visit) -> Response:
    name = full_name(visit)
    return visit.page("adapter_evaluation.html.j2", **await _drawn(visit), tabs=tabs(visit, name))


async def live(visit: Visit) -> Response:
    async def draw() -> str:
        return visit.renderer.render("adapter_evaluation_now.html.j2", visit=visit, **await _drawn(visit))

    return await visit.live(draw)


async def _drawn(visit: Visit) -> dict[str, Any]:
    name, evaluation_id = full_name(visit), visit.params["evaluation"]
    evaluation = await visit.api.get(api_of(name, "evaluations", evaluation_id), Evaluation)
    progress = evaluation.progress
    done = progress.completed + progress.failed if progress else 0
    return {
        "e": evaluation,
        "r": evaluation.result or Result(),
        "name": name,
        "open": evaluation.status in _OPEN,
        "done": done,
        "total": progress.total if progress else 0,
        "verdict": _ended(evaluation),
        "cli": command("adapter", "evals", name, evaluation.id),
    }


_ONE = "/adapters/{tenant}/{name}"
ROUTES = (
    Route(f"{_ONE}/evaluations", evaluations, MANAGERS),
    Route(f"{_ONE}/evaluations/new", new, MANAGERS),
    Route(f"{_ONE}/evaluations", start, MANAGERS, "POST", reads_body=True),
    Route(f"{_ONE}/evaluations/{{evaluation}}", evaluation, MANAGERS),
    Route("/live/adapters/{tenant}/{name}/evaluations/{evaluation}", live, MANAGERS),
)
