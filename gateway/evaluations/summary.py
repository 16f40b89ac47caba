"""What an evaluation found, and whether it passed. Pure.

If the candidate does not answer, the case scores 0. If the other model does not answer, the case is left out,
as is one for which a judge gave no score. If too many are left out, nothing passes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from adapters.wording import counted
from gateway.evaluations.answers import Answer
from gateway.evaluations.cases import Case
from gateway.evaluations.documents import BINARY, EvaluationPlan, Metric
from gateway.evaluations.requests import AGAINST, CANDIDATE, AnswerKey
from gateway.evaluations.statistics import LEVEL, Interval, bootstrap, mcnemar, paired_proportions, wilson

MOST_EXAMPLES: Final = 10
MOST_PROMPT: Final = 300
"""Characters of a prompt or an expected answer in an example."""
MOST_LEFT_OUT: Final = 0.05
"""Share of the cases without which an evaluation may still pass."""
_UNASKED: Final = Answer(None, error="not_answered")


@dataclass(frozen=True, slots=True)
class Scored:
    """A case with the scores that count."""

    case: Case
    candidate: float
    against: float | None
    """None: it is not compared."""


def summarize(
    plan: EvaluationPlan, cases: Sequence[Case], answers: Mapping[AnswerKey, Answer], *, compared: bool
) -> tuple[dict[str, Any], bool | None]:
    """The summary, and whether the candidate passed; None: there was nothing to pass."""
    scored_cases = [s for case in cases if (s := _scored(plan, case, answers, compared=compared)) is not None]
    scores = [s.candidate for s in scored_cases]
    summary: dict[str, Any] = {
        "scored": len(scored_cases),
        "left_out": len(cases) - len(scored_cases),
        "unanswered": _missing(cases, answers, CANDIDATE),
        "errors": _errors(answers, CANDIDATE),
        "level": LEVEL,
        **_score(plan, scores),
    }
    difference = None
    if compared:
        others = [s.against for s in scored_cases if s.against is not None]
        pairs = [a - b for a, b in zip(scores, others, strict=True)]
        better, worse = sum(d > 0 for d in pairs), sum(d < 0 for d in pairs)
        if pairs and plan.metric in BINARY:
            difference = paired_proportions(better, worse, len(pairs))
        elif pairs:
            difference = bootstrap(pairs)
        summary["against"] = {
            **_score(plan, others),
            "unanswered": _missing(cases, answers, AGAINST),
            "errors": _errors(answers, AGAINST),
        }
        summary |= {
            "difference": _mean(pairs),
            "difference_interval": None if difference is None else asdict(difference),
            "better": better,
            "worse": worse,
            "p_value": mcnemar(better, worse) if plan.metric in BINARY else None,
        }
    reasons = _objections(plan, len(cases), scores, difference)
    summary |= {"reasons": reasons, "examples": _examples(plan, scored_cases, answers)}
    return summary, not reasons if plan.decides else None


def _scored(
    plan: EvaluationPlan, case: Case, answers: Mapping[AnswerKey, Answer], *, compared: bool
) -> Scored | None:
    own = answers.get((case.line, CANDIDATE), _UNASKED)
    score = 0.0 if own.error and plan.metric is not Metric.PERPLEXITY else own.score
    other = answers.get((case.line, AGAINST), _UNASKED).score if compared else None
    if score is None or (compared and other is None):
        return None
    return Scored(case, score, other)


def _score(plan: EvaluationPlan, scores: Sequence[float]) -> dict[str, Any]:
    if not scores:
        return {"score": None, "interval": None, "perplexity": None}
    mean = math.fsum(scores) / len(scores)
    binary = plan.metric in BINARY
    interval = wilson(round(sum(scores)), len(scores)) if binary else bootstrap(scores)
    return {
        "score": mean,
        "interval": asdict(interval),
        "perplexity": _perplexity(mean) if plan.metric is Metric.PERPLEXITY else None,
    }


def _perplexity(score: float) -> float:
    """The perplexity for a mean log-likelihood of a token."""
    return math.exp(min(700.0, -score))


def _objections(
    plan: EvaluationPlan, count: int, scores: Sequence[float], difference: Interval | None
) -> list[str]:
    """Why it does not pass."""
    if not plan.decides:
        return []
    if not scores:
        return ["No case has a score."]
    objections = []
    left_out = count - len(scores)
    if left_out > MOST_LEFT_OUT * count:
        objections.append(
            f"{left_out:,} of {counted(count, 'case')} without a score: more than {MOST_LEFT_OUT:.0%}."
        )
    mean = math.fsum(scores) / len(scores)
    if plan.threshold is not None:
        if plan.metric is Metric.PERPLEXITY and _perplexity(mean) > plan.threshold:
            objections.append(f"The perplexity, {_perplexity(mean):.3f}, is above {plan.threshold:g}.")
        elif plan.metric is not Metric.PERPLEXITY and mean < plan.threshold:
            objections.append(f"The score, {mean:.3f}, is below {plan.threshold:g}.")
    if plan.no_worse_than is not None and difference is not None and difference.low < -plan.no_worse_than:
        objections.append(
            f"It may be worse by {-difference.low:.3f} ({LEVEL:.0%} interval), which is more than "
            f"{plan.no_worse_than:g}."
        )
    return objections


def _examples(
    plan: EvaluationPlan, scored_cases: Sequence[Scored], answers: Mapping[AnswerKey, Answer]
) -> list[dict[str, Any]]:
    """The cases that got worse, the worst first; without another model, the worst ones."""
    best = math.inf if plan.metric is Metric.PERPLEXITY else 1.0
    worse = [s for s in scored_cases if s.candidate < (best if s.against is None else s.against)]
    worse.sort(key=lambda s: (s.candidate - (s.against or 0.0), s.case.line))
    return [_example(s, answers) for s in worse[:MOST_EXAMPLES]]


def _example(s: Scored, answers: Mapping[AnswerKey, Answer]) -> dict[str, Any]:
    own, other = (answers.get((s.case.line, which), _UNASKED) for which in (CANDIDATE, AGAINST))
    compared = s.against is not None
    return {
        "line": s.case.line,
        "prompt": _clipped(s.case.question),
        "expected": None if s.case.expected is None else _clipped(s.case.expected),
        "answer": own.text,
        "error": own.error or None,
        "score": s.candidate,
        "against_answer": other.text if compared else None,
        "against_score": s.against,
    }


def _missing(cases: Sequence[Case], answers: Mapping[AnswerKey, Answer], which: str) -> int:
    return sum(bool(answers.get((case.line, which), _UNASKED).error) for case in cases)


def _errors(answers: Mapping[AnswerKey, Answer], which: str) -> dict[str, int]:
    counts = Counter(a.error for key, a in answers.items() if key[1] == which and a.error)
    return dict(sorted(counts.items()))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _clipped(text: str) -> str:
    return text if len(text) <= MOST_PROMPT else text[:MOST_PROMPT] + "…"
