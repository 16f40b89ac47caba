"""How a model answers a few fixed prompts, how far two such answers are apart, and what that says: pure.

A probe asks for the first tokens after each of CONTEXTS, greedily, all in one request. Its logprobs are those
of the TOP likeliest first tokens after each, sorted: always after the same contexts, so that answers can be
compared number by number however their texts go on, and in an order that two tokens of nearly the same chance
do not upset.

The logprobs of the prompt's own tokens would say more for the same prefill, but are not asked for: with them
vLLM 0.32 (CPU) counts other rows than its adapters' kernels do, and the engine dies as soon as another
request shares the batch.

Distances are in nats, the mean over all logprobs. The thresholds come from two real engines (0.32, CPU,
float32, a Llama of 2 layers, adapters of rank 8, 8 contexts, 5 logprobs each):

    the same model again, on the same engine, on another, and under 12 concurrent streams      0
    an adapter to the base, its `B` scaled by 1e-9, 1e-6, 1e-4        0.0000003, 0.000005, 0.0006
    the same, scaled by 0.001, 0.003, 0.01, 0.1                           0.006, 0.018, 0.061, 0.6
    five trained adapters to the base                                                 0.63 to 1.59
    the same to each other                                                            0.96 to 2.02
    an adapter to itself with `B` scaled by 1.001, 0.99, 0.9                   0.002, 0.021, 0.19

What they do not show is a GPU in bfloat16. There a logit between 16 and 32 is a multiple of an eighth, and
batches of other sizes round differently; 0.01 to 0.03 a token is to be expected of a sound version, and other
GPU types add to it. So the thresholds err where an error costs least: a sound version in quarantine is an
outage, and a bad one that passes is what would be served without any verification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from adapters.model import Fingerprint

CONTEXTS = (
    "The capital of France is",
    "user: Hello! Who are you, and whom do you work for?\nassistant:",
    "def add(a, b):\n    return",
    "1, 2, 3, 4,",
    "Dear customer, thank you for your",
    "Es war einmal ein",
    '{"name": "',
    "Question: When will my order arrive?\nAnswer:",
)
"""Of several kinds, so that what an adapter was trained for touches some of them; short, so that the probe
costs less than a request."""
TOKENS = 4
"""After each context: for people who look at the evidence."""
MAX_TEXT = 4_000
"""Characters of TOKENS tokens, with room to spare: the texts are kept in the registry."""
MAX_TOKENS = 100_000
"""Of one probe: more is no count, and would stand in the books."""
TOP = 5
"""vLLM allows 20 by default, OpenAI 5."""
PROMPT_ID = "1"
"""Changes with any of the above: fingerprints of others are not comparable, and are taken anew."""

LIKE_BASE = 0.005
"""At most so far from the base, and the same texts: the adapter does nothing. A thousandth of a trained
adapter's effect is about that."""
UNLIKE_ITSELF = 0.15
"""Further than that from its first answer: other weights, or an engine that computes them wrongly. Five times
the noise to be expected, and a sixth of the least distance between two adapters that was seen."""
MOST_UNLIKE = 0.5
"""No noise of the engine's excuses more than this."""
FARTHEST = 20.0
"""Answers that cannot be compared at all, and the most that one logprob counts."""


_BETWEEN = " ⏎ "


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a model said to one probe."""

    texts: tuple[str, ...]
    """After each of CONTEXTS."""
    logprobs: tuple[float, ...]
    """TOP for each of CONTEXTS, the highest first."""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0

    @property
    def text(self) -> str:
        return _BETWEEN.join(self.texts)


class Similarity(StrEnum):
    SOUND = "sound"
    LIKE_BASE = "answers_like_base"
    UNLIKE_ITSELF = "unlike_itself"
    SUSPECT = "engine_suspect"
    """The base model is unlike itself there too: it is the engine, not the version."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one probe of a version says. Distances are None where there is nothing to compare with."""

    result: Similarity
    to_base: float | None
    """To the base's answer on the same engine."""
    to_first: float | None
    """To the version's own first answer."""
    drift: float | None
    """Of the base on this engine, to its own first answer."""
    limit: float
    """How far from its first answer the version may be here."""


def parse(body: Any) -> ProbeAnswer:
    """A /v1/completions answer to `request`. Raises ValueError, LookupError, TypeError, AttributeError for
    what is none."""
    choices = sorted(body["choices"], key=lambda choice: choice["index"])
    if len(choices) != len(CONTEXTS):
        raise ValueError(f"{len(choices)} answers to {len(CONTEXTS)} prompts")
    logprobs = [lp for choice in choices for lp in _first(choice["logprobs"]["top_logprobs"])]
    texts = tuple(_text(choice["text"]) for choice in choices)
    return replace(cost(body), texts=texts, logprobs=tuple(logprobs))


def cost(body: Any) -> ProbeAnswer:
    """What a /v1/completions answer has taken, without what it says. Raises as `parse`."""
    usage = body["usage"]
    prompt = _tokens(usage["prompt_tokens"])
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return ProbeAnswer(
        (),
        (),
        prompt,
        None if cached is None else min(_tokens(cached), prompt),
        _tokens(usage["completion_tokens"]),
    )


def _first(steps: Sequence[Mapping[str, float]]) -> list[float]:
    likeliest = sorted((_logprob(lp) for lp in steps[0].values()), reverse=True)[:TOP]
    if len(likeliest) < TOP:
        raise ValueError(f"{len(likeliest)} logprobs where {TOP} were asked for")
    return likeliest


def _logprob(value: Any) -> float:
    """Engines round, so a certainty may come out a little above zero."""
    if type(value) not in (int, float) or value > 1e-3:
        raise ValueError(f"{str(value)[:40]!r} is no logprob")
    return max(-FARTHEST, float(value))


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise ValueError(f"{TOKENS} tokens are no text of {len(str(value))} characters")
    return value


def _tokens(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"a probe does not take {str(value)[:40]} tokens")
    return value


def request(model: str, salt: str) -> dict[str, Any]:
    """The body of a probe. `salt`: never used before, so that no prefix cache answers in its place."""
    return {
        "model": model,
        "prompt": list(CONTEXTS),
        "max_tokens": TOKENS,
        "temperature": 0,
        "logprobs": TOP,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
        "cache_salt": salt,
    }


def one_token(model: str, salt: str) -> dict[str, Any]:
    """The body of the least that an engine's core can be asked. `salt`: as for `request`."""
    return {
        "model": model,
        "prompt": "1",
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": salt,
    }


def fingerprint(answer: ProbeAnswer, *, engine: str, gpu_type: str, taken: int) -> Fingerprint:
    return Fingerprint(PROMPT_ID, answer.text, answer.logprobs, engine, gpu_type, taken)


def answer_of(fingerprint: Fingerprint | None) -> ProbeAnswer | None:
    """What it holds; None also when it was taken with other prompts."""
    if fingerprint is None or fingerprint.prompt != PROMPT_ID:
        return None
    return ProbeAnswer(tuple(fingerprint.text.split(_BETWEEN)), fingerprint.logprobs)


def distance(one: ProbeAnswer | None, other: ProbeAnswer | None) -> float | None:
    """Mean absolute difference of their logprobs, in nats. None: one of them is not known."""
    if one is None or other is None:
        return None
    if len(one.logprobs) != len(other.logprobs) or not one.logprobs:
        return FARTHEST
    pairs = zip(one.logprobs, other.logprobs, strict=True)
    return sum(abs(a - b) for a, b in pairs) / len(one.logprobs)


def is_itself(drift: float | None) -> bool:
    """Whether a base model that is so far from its first answer still counts as the same."""
    return drift is None or drift <= UNLIKE_ITSELF


def judge(
    answer: ProbeAnswer,
    *,
    base: ProbeAnswer | None,
    first: ProbeAnswer | None,
    first_base: ProbeAnswer | None,
    trusted: bool = False,
) -> Judgement:
    """`base`: the base's answer on the same engine; `first`, `first_base`: the first answers of the version
    and of the base, wherever they were taken. `trusted` versions may answer like the base.

    What moves the base's answer (another GPU type, quantization) moves the version's too, so its limit grows
    with the base's drift, though not without end.
    """
    to_base, to_first = distance(answer, base), distance(answer, first)
    drift = distance(base, first_base)
    limit = min(MOST_UNLIKE, UNLIKE_ITSELF + 2 * (drift or 0.0))
    result = Similarity.SOUND
    if not trusted and to_base is not None and base and to_base <= LIKE_BASE and answer.texts == base.texts:
        result = Similarity.LIKE_BASE
    elif to_first is not None and to_first > limit:
        result = Similarity.UNLIKE_ITSELF
    if result is not Similarity.SOUND and not is_itself(drift):
        result = Similarity.SUSPECT
    return Judgement(result, to_base, to_first, drift, limit)


def evidence(
    judgement: Judgement,
    answer: ProbeAnswer,
    *,
    engine: str,
    base: ProbeAnswer | None,
    first: Fingerprint | None,
) -> dict[str, Any]:
    """What was compared, for the operator: JSON. Distances in nats, `taken` in Unix microseconds, UTC."""
    known = answer_of(first)
    columns = [known.texts if known else (), base.texts if base else ()]
    rows = [
        {"prompt": prompt, "here": here, **_others(columns, at)}
        for at, (prompt, here) in enumerate(zip(CONTEXTS, answer.texts, strict=True))
    ]
    return {
        "engine": engine,
        "distance_to_base": _rounded(judgement.to_base),
        "like_base_up_to": LIKE_BASE,
        "distance_to_first": _rounded(judgement.to_first),
        "unlike_itself_over": _rounded(judgement.limit),
        "base_drift": _rounded(judgement.drift),
        "first": None
        if first is None
        else {"engine": first.engine, "gpu_type": first.gpu_type, "taken": first.taken},
        "answers": rows,
    }


def _others(columns: Sequence[Sequence[str]], at: int) -> dict[str, str | None]:
    first, base = (column[at] if at < len(column) else None for column in columns)
    return {"first": first, "base_here": base}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
