"""An evaluation as it is stored, and as the API shows it. Pure. Times are Unix microseconds."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import orjson


class Metric(StrEnum):
    EXACT = "exact"
    REGEX = "regex"
    JSON_SCHEMA = "json-schema"
    PERPLEXITY = "perplexity"
    JUDGE = "judge"


BINARY: Final = frozenset({Metric.EXACT, Metric.REGEX, Metric.JSON_SCHEMA})
"""Metrics by which an answer is right or wrong."""
REFERENCED: Final = frozenset({Metric.EXACT, Metric.PERPLEXITY})
"""Metrics that need each case's expected answer."""


class EvaluationStatus(StrEnum):
    ANSWERING = "answering"
    JUDGING = "judging"
    COMPLETED = "completed"
    FAILED = "failed"


OPEN: Final = (EvaluationStatus.ANSWERING, EvaluationStatus.JUDGING)


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What is asked and measured. Everything that the result depends on, besides data and weights."""

    metric: Metric
    pattern: str = ""
    """For metric `regex`."""
    json_schema: str = ""
    """For metric `json-schema`: the schema, as JSON."""
    judge: str = ""
    """For metric `judge`: the version that judges, `acme/judge@v1`."""
    judge_prompt: str = ""
    threshold: float | None = None
    """The least score, or with `perplexity` the most, that passes."""
    no_worse_than: float | None = None
    """How much worse than the other model it may be, at the interval's worse end."""
    max_tokens: int = 256
    limit: int | None = None
    """How many of the data's cases are used, from the first; None: all."""

    @property
    def decides(self) -> bool:
        """Whether it has a criterion to pass."""
        return self.threshold is not None or self.no_worse_than is not None


@dataclass(frozen=True, slots=True)
class Evaluation:
    id: str
    tenant: str
    tenant_since: int
    adapter: str
    """Full name."""
    version: int
    digest: str
    against: str
    """`acme/support@v1`, or the base model's name; empty: it is not compared."""
    against_digest: str
    """Empty for the base model."""
    plan: str
    """JSON of an EvaluationPlan."""
    data_sha256: str
    cases: int
    status: str
    key_id: str
    """Under which its batches run."""
    actor: str
    created_at: int
    batch: str = ""
    judge_batch: str = ""
    ended_at: int | None = None
    passed: bool | None = None
    """None: it has not ended, or has no criterion."""
    summary: str = ""
    """JSON, once it has ended; see `summary`. Empty before."""
    lease_until: int = 0

    @property
    def label(self) -> str:
        return f"{self.adapter}@v{self.version}"

    def read_plan(self) -> EvaluationPlan:
        plan = orjson.loads(self.plan)
        return EvaluationPlan(**{**plan, "metric": Metric(plan["metric"])})

    def document(self) -> dict[str, Any]:
        """Without the examples, which have prompts and answers."""
        summary = orjson.loads(self.summary) if self.summary else {}
        summary.pop("examples", None)
        return {
            "id": self.id,
            "adapter": self.adapter,
            "version": f"v{self.version}",
            "digest": self.digest,
            "against": self.against or None,
            "against_digest": self.against_digest or None,
            **_shown(self.read_plan()),
            "data_sha256": self.data_sha256,
            "cases": self.cases,
            "status": self.status,
            "passed": self.passed,
            "created": self.created_at,
            "ended": self.ended_at,
            "by": self.actor,
            "result": summary or None,
        }

    def brief(self) -> dict[str, Any]:
        """What a version's page shows of its last evaluation."""
        document = self.document()
        figures = dict.fromkeys(("scored", "score", "interval", "difference"))
        return figures | (document["result"] or {}) | document

    def examples(self) -> list[dict[str, Any]]:
        summary = orjson.loads(self.summary) if self.summary else {}
        return list(summary.get("examples", ()))


def _shown(plan: EvaluationPlan) -> dict[str, Any]:
    return {name: value if value != "" else None for name, value in asdict(plan).items()}


def new_evaluation_id() -> str:
    return f"eval_{secrets.token_hex(12)}"
