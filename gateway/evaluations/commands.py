"""florin adapter eval …: evaluating versions before they are promoted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from adapters.wording import counted
from gateway.commands.client import Json, UsageError, segment
from gateway.commands.options import with_options
from gateway.commands.output import busy, clean, facts, note, say, show, table, when
from gateway.commands.session import REFUSED, Session, command
from gateway.evaluations.schemas import (
    EvalPolicyAnswer,
    Evaluation,
    Interval,
    ListedEvaluation,
    NewEvaluation,
    Result,
)
from gateway.fleet.adapters.commands.adapters import Adapter
from gateway.fleet.adapters.commands.page import outcome
from gateway.schemas.base import Listed

app = typer.Typer()

_POLL_SECONDS: Final = 1.0
_SHOWN: Final = 60
"""Characters of a text in the table of examples."""


@command(app, "eval")
@with_options(NewEvaluation)
def eval_(
    session: Session,
    version: Annotated[str, typer.Argument(metavar="TENANT/NAME@VN", help="For example acme/support@v2.")],
    *,
    data: Annotated[Path, typer.Option(help="The held-out set: JSON Lines.")],
    schema: Annotated[
        Path | None, typer.Option(help="With --metric json-schema: a file with the JSON Schema.")
    ] = None,
    judge_prompt: Annotated[
        Path | None, typer.Option(help="With --metric judge: a file that describes a good answer.")
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait for the result. Without, see `florin adapter evals`."),
    ] = True,
    changes: Json,
) -> None:
    """Evaluate a version: send it a held-out set at batch priority, and score its answers. Exits with 1 if it
    does not pass.

    The evaluation runs in the gateway, and continues if this command is interrupted. Its tokens are billed to
    the tenant, at batch prices.

    Example: florin adapter eval acme/support@v2 --data held-out.jsonl --against live --no-worse-than 0.02
    """
    name, separator, number = version.partition("@")
    if not separator or not number:
        raise UsageError(f"{version!r} is not TENANT/NAME@VN, like acme/support@v2.")
    path = session.adapter_path(name)
    files = {"data": data, "json_schema": schema, "judge_prompt": judge_prompt}
    changes |= {name: _read(file) for name, file in files.items() if file is not None}
    body = session.api.post(f"{path}/versions/{segment(number)}/evaluations", changes, Evaluation)
    if wait:
        body = _ended(session, f"{path}/evaluations/{segment(body.id)}", body)
    session.result(body, _one)
    if wait and (body.status == "failed" or body.passed is False):
        raise typer.Exit(REFUSED)


@command(app, "evals")
def evals(
    session: Session,
    adapter: Adapter,
    evaluation: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Show this one, with examples. Default: list all.")
    ] = None,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="With an ID: wait until it has ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number to list.")] = 100,
) -> None:
    """List an adapter's evaluations, newest first, or show one.

    Example: florin adapter evals acme/support
    """
    path = f"{session.adapter_path(adapter)}/evaluations"
    if evaluation is None:
        evaluations = session.api.get(path, Listed[ListedEvaluation], {"limit": str(limit)})
        session.result(evaluations, _list)
        return
    path = f"{path}/{segment(evaluation)}"
    body = session.api.get(path, Evaluation)
    session.result(_ended(session, path, body) if wait else body, _one)


@command(app, "require-eval")
def require_eval(
    session: Session,
    adapter: Adapter,
    *,
    data_sha256: Annotated[
        str | None,
        typer.Option("--of", metavar="SHA256", help="Count only evaluations with this held-out set."),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Stop requiring an evaluation.")] = False,
) -> None:
    """From now on, refuse to promote a version of this adapter that has not passed its last evaluation.
    Rolling back needs no evaluation.

    Example: florin adapter require-eval acme/support
    """
    body = {"require_eval": not off, "data_sha256": data_sha256}
    path = f"{session.adapter_path(adapter)}/evaluation-policy"
    session.result(session.api.put(path, body, EvalPolicyAnswer), _policy)


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _ended(session: Session, path: str, body: Evaluation) -> Evaluation:
    with busy(f"Evaluating {body.adapter}@{body.version} …"):
        while body.status in ("answering", "judging"):
            time.sleep(_POLL_SECONDS)
            body = session.api.get(path, Evaluation)
    return body


def _policy(body: EvalPolicyAnswer) -> None:
    name = clean(body.adapter)
    if not body.require_eval:
        say(f"{name} is promoted without evaluations.")
    elif body.data_sha256:
        say(f"{name} is promoted only after a passing evaluation of {clean(body.data_sha256)}.")
    else:
        say(f"{name} is promoted only after a passing evaluation.")


def _list(body: Listed[ListedEvaluation]) -> None:
    if not body.data:
        note("No evaluations yet: florin adapter eval TENANT/NAME@VN --data FILE")
        return
    rows = [
        (
            e.id, e.version, e.status, outcome(e, e.result.score if e.result else None),
            e.against, e.cases, e.data_sha256[:12], when(e.created), e.by,
        )
        for e in body.data
    ]  # fmt: skip  # one name a line says no more
    columns = ("evaluation", "version", "status", "result", "against", "cases", "data", "started", "by")
    show(table(columns, rows, right=("cases",)))


def _one(body: Evaluation) -> None:
    result, progress = body.result or Result(), body.progress
    pairs: list[tuple[str, Any]] = [
        ("evaluation", body.id),
        ("version", f"{body.adapter}@{body.version}"),
        ("data", f"{body.data_sha256[:12]}…, {counted(body.cases, 'case')}"),
        ("metric", body.metric),
        ("status", body.status),
    ]
    if body.status in ("answering", "judging"):
        if progress:
            pairs.append(("answers", f"{progress.completed + progress.failed:,} of {progress.total:,}"))
        show(facts(pairs))
        note(f"The gateway continues: florin adapter evals {clean(body.adapter)} {clean(body.id)}")
        return
    if result.error is None:
        pairs += _figures(body, result)
    show(facts(pairs))
    if result.error is not None:
        say(clean(result.error))
    _examples(body)
    _verdict(body, result)


def _figures(body: Evaluation, result: Result) -> list[tuple[str, Any]]:
    pairs = [("score", _with_interval(result.score, result.interval))]
    if result.perplexity is not None:
        pairs.append(("perplexity", f"{result.perplexity:.3f}"))
    other = result.against
    if other:
        pairs.append((clean(body.against), _with_interval(other.score, other.interval)))
        pairs.append(("difference", _with_interval(result.difference, result.difference_interval)))
        pairs.append(
            ("better, worse", f"{result.better:,}, {result.worse:,} of {counted(result.scored, 'case')}")
        )
    if result.unanswered:
        codes = ", ".join(f"{code} {count:,}" for code, count in result.errors.items())
        pairs.append(("unanswered", f"{result.unanswered:,} ({codes})"))
    if result.left_out:
        pairs.append(("without a score", f"{result.left_out:,}"))
    return pairs


def _with_interval(value: float | None, interval: Interval | None) -> str:
    if value is None or interval is None:
        return "none"
    return f"{value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _examples(body: Evaluation) -> None:
    if not body.examples:
        return
    compared = body.against is not None
    say("Cases that got worse:" if compared else "The worst cases:")
    columns = ["line", "prompt", "expected", "answer", *(["answer before"] if compared else ())]
    rows = [
        [
            example.line, _short(example.prompt), _short(example.expected),
            _short(example.answer or example.error),
            *([_short(example.against_answer)] if compared else ()),
        ]
        for example in body.examples
    ]  # fmt: skip  # as above
    show(table(columns, rows, right=("line",)))


def _short(text: str | None) -> str:
    text = " ".join((text or "").split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _verdict(body: Evaluation, result: Result) -> None:
    label = f"{clean(body.adapter)}@{clean(body.version)}"
    if body.passed:
        say(f"{label} passes.")
    elif body.passed is False:
        reasons = " ".join(clean(reason) for reason in result.reasons)
        say(f"{label} does not pass. {reasons}".rstrip())
    elif body.status == "completed":
        note("There was no criterion to pass: set --threshold, or --against with --no-worse-than.")
