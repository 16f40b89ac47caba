"""Evaluations of versions: how they are requested, and how the API describes them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.batches.schemas import BatchUsage, RequestCounts
from gateway.evaluations.documents import EvaluationStatus, Metric
from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.options import Option

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", examples=["9f86d081884c7d65" * 4])]


class NewEvaluation(StrictBody):
    data: str = Field(min_length=1, description="The held-out set: JSON Lines (docs/evaluation.md).")
    metric: Annotated[Metric, Option(help="How an answer is scored.")] = Metric.EXACT
    against: Annotated[
        str, Option(help="Compare with another version (v1), with `live`, or with `base`.")
    ] = Field(
        "",
        pattern=r"^(|base|live|v[1-9][0-9]{0,8})$",
        description="What it is compared with; empty: nothing.",
    )
    pattern: Annotated[str, Option()] = Field(
        "", description="Of metric `regex`, found anywhere in an answer."
    )
    json_schema: str = Field("", description="Of metric `json-schema`: JSON, as text.")
    judge: Annotated[str, Option(metavar="ADAPTER")] = Field(
        "", max_length=200, description="Of metric `judge`: the adapter that judges."
    )
    judge_prompt: str = Field("", description="Of metric `judge`: what a good answer is.")
    threshold: Annotated[float | None, Option()] = Field(
        None,
        ge=0,
        le=1e9,
        allow_inf_nan=False,
        description="The lowest score that passes; for perplexity, the highest.",
    )
    no_worse_than: Annotated[float | None, Option()] = Field(
        None, ge=0, le=1e9, allow_inf_nan=False, description="By how much it may be worse than `against`."
    )
    max_tokens: Annotated[int, Option(help="Maximum number of tokens in an answer.")] = Field(
        256, ge=1, le=4096
    )
    limit: Annotated[int | None, Option()] = Field(
        None, ge=1, description="Number of cases, from the first. Omitted: all."
    )


class EvalPolicy(StrictBody):
    require_eval: bool
    data_sha256: Sha256 | None = Field(None, description="Of which data; null: of any.")


class EvalPolicyAnswer(Answer):
    adapter: str
    require_eval: bool
    data_sha256: str | None


class Interval(Answer):
    low: float
    high: float


class Score(Answer):
    score: float | None
    interval: Interval | None
    perplexity: float | None = Field(None, description="Of metric `perplexity`.")
    unanswered: int = Field(0, description="Cases that got no answer.")
    errors: dict[str, int] = Field({}, description="Why: the error's code and how many.")


class Result(Score):
    """How an evaluation ended. Of a failed one, only `error`."""

    error: str | None = None
    score: float | None = None
    interval: Interval | None = None
    scored: int = Field(0, description="Cases with a score.")
    left_out: int = Field(0, description="Cases without one.")
    level: float = Field(0.0, description="Of the intervals, for example 0.95.")
    against: Score | None = Field(None, description="The model that it was compared with.")
    difference: float | None = None
    difference_interval: Interval | None = None
    better: int = 0
    worse: int = 0
    p_value: float | None = None
    reasons: tuple[str, ...] = Field((), description="Why it does not pass.")


class LastEvaluation(Answer):
    """What a version's page shows of its last evaluation."""

    id: str
    metric: Metric
    against: str | None
    data_sha256: str
    status: EvaluationStatus
    passed: bool | None = Field(description="null: it has not ended, or has nothing to pass.")
    ended: int | None = Field(description="Unix microseconds, UTC.")
    by: str
    scored: int | None
    score: float | None
    interval: Interval | None
    difference: float | None


class ListedEvaluation(Answer):
    id: str
    adapter: str
    version: str
    digest: str
    against: str | None = Field(description="`acme/support@v1`, or the base model; null: nothing.")
    against_digest: str | None
    metric: Metric
    pattern: str | None
    json_schema: str | None
    judge: str | None = Field(description="The version that judges.")
    judge_prompt: str | None
    threshold: float | None
    no_worse_than: float | None
    max_tokens: int
    limit: int | None
    data_sha256: str
    cases: int
    status: EvaluationStatus
    passed: bool | None = Field(description="null: it has not ended, or has nothing to pass.")
    created: int = Field(description="Unix microseconds, UTC.")
    ended: int | None = Field(description="Unix microseconds, UTC.")
    by: str
    result: Result | None


class Example(Answer):
    """A case that got worse, or one of the worst."""

    line: int
    prompt: str
    expected: str | None
    answer: str | None
    error: str | None
    score: float
    against_answer: str | None
    against_score: float | None


class Progress(RequestCounts):
    """Progress of the batch that runs, or ran last."""

    usage: BatchUsage


class Evaluation(ListedEvaluation):
    examples: tuple[Example, ...]
    batch: str
    progress: Progress | None = Field(description="null once its batch has been deleted.")
