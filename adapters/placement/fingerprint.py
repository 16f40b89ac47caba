"""Compares a model's answers to a few fixed prompts. Pure.

A probe is one request that greedily generates the first tokens after each of CONTEXTS. Its logprobs are those
of the TOP likeliest first tokens after each context, sorted. The contexts are fixed, so two answers can be
compared number by number even if their texts diverge, and sorting keeps two near-equal tokens from changing
the order.

Prompt logprobs would reveal more for the same prefill, but they crash vLLM 0.32 (CPU): its row count then
differs from that of the LoRA kernels, and the engine dies as soon as another request shares the batch.

Distances are in nats, averaged over all logprobs. The thresholds were measured on two real engines (vLLM
0.32, CPU, float32, a 2-layer Llama, rank-8 adapters, 8 contexts, 5 logprobs each):

    the same model again, on the same engine, on another, and under 12 concurrent streams      0
    an adapter to the base, its `B` scaled by 1e-9, 1e-6, 1e-4        0.0000003, 0.000005, 0.0006
    the same, scaled by 0.001, 0.003, 0.01, 0.1                           0.006, 0.018, 0.061, 0.6
    five trained adapters to the base                                                 0.63 to 1.59
    the same to each other                                                            0.96 to 2.02
    an adapter to itself with `B` scaled by 1.001, 0.99, 0.9                   0.002, 0.021, 0.19

Engines that embed are asked for the contexts' vectors, those that only score for scores of pairs of contexts.
The distance of vectors is that of their directions, from 0 to 2. On an engine with `--runner pooling`:

    the same model again, and beside 24 concurrent requests to three models                    0
    an adapter to the base, its `B` scaled by 1e-9, 1e-4, 0.001             0.0000001, 0.0002, 0.0017
    the same, scaled by 0.01, 0.1                                                      0.017, 0.17
    trained adapters to the base and to each other                                    1.01 to 1.05
    an adapter to itself with `B` scaled by 1.001, 0.99, 0.9                   0.0008, 0.008, 0.08

In bfloat16 on a GPU, rounding varies with the batch, and the same model answers in several ways, also alone.
On one H200 and one H100 (vLLM 0.26, an 8B-shaped Llama with random weights, 8 contexts;
docs/reference/gpu.md):

    the base model again: mean, and most of all pairs                               0.05, 0.09
    an adapter again                                                        0.03 and 0.07, 0.11
    the base model, and adapters, on the other GPU                              up to 0.12, 0.10
    an adapter to itself with `B` scaled by 0.99, 0.9, 0.1        0.09 to 0.13, 0.22 to 0.27, 0.75 to 0.78
    an adapter to the base, with `B` scaled by 0.1, 1                       0.34 to 0.39, 0.63 to 0.83
    an adapter to another                                                                0.48 to 0.60

So the base model is asked BASE_ANSWERS times, and how far its answers are apart is the engine's noise. With
the answers of either engine, an adapter without effect would be missed in 2 to 3 of 100 cases; with a single
answer of the base model, in 74 to 79. The thresholds are lenient: quarantining a sound version causes an
outage, while a bad version that passes is no worse than having no verification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from adapters.model import Fingerprint, Task
from adapters.placement import vectors

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
"""Varied, so that whatever an adapter was trained for affects some of them; short, so that a probe costs less
than a request."""
TOKENS = 4
"""Tokens generated after each context, for people who read the evidence."""
MAX_TEXT = 4_000
"""Upper bound on the characters of TOKENS tokens. The texts are stored in the registry."""
MAX_TOKENS = 100_000
"""Upper bound for one probe. A larger count is bogus and would end up in the ledger."""
TOP = 5
"""vLLM allows 20 by default, OpenAI 5."""
PROMPT_ID = "1"
"""Changes with any of the above. Fingerprints with another id are not comparable and are taken again."""
PROMPT_IDS: Mapping[Task, str] = {"generate": PROMPT_ID, "embed": "v1", "score": "s1"}
"""The same, for what engines are for."""

LIKE_BASE = 0.005
"""An adapter this close to the base model, with the same texts, has no effect. This is about a thousandth of
a trained adapter's effect. On a noisier engine, the same model's texts differ, too, and do not count."""
LIKE_BASE_POOLED = 0.002
"""The same for vectors and scores, of which there are no texts."""
BASE_ANSWERS = 4
"""Answers of the base model, of which the first is compared with and the others show the engine's noise."""
NOISE = 3.0
"""An adapter is also like the base model if its distance is at most that many times the engine's noise, and
at most UNLIKE_ITSELF."""
UNLIKE_ITSELF = 0.15
"""Beyond this distance from its first answer, a version has different weights or the engine computes them
wrongly. 1.4 times the most that an adapter's answers were apart on GPUs, and a third of the smallest distance
seen between two adapters."""
MOST_UNLIKE = 0.5
"""Upper bound on the limit, however noisy the engine."""
FARTHEST = 20.0
"""Distance of incomparable answers, and the cap on a single logprob's difference."""


_BETWEEN = " ⏎ "


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """A model's answer to one probe."""

    texts: tuple[str, ...]
    """Text after each of CONTEXTS."""
    logprobs: tuple[float, ...]
    """TOP for each of CONTEXTS, the highest first."""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    prompt: str = PROMPT_ID
    """What it answers: one of PROMPT_IDS. The numbers are sketches of the vectors, or scores, for an engine
    that generates nothing."""
    noise: float = 0.0
    """Largest distance to further answers of the same model on the same engine; 0: there were none."""

    @property
    def text(self) -> str:
        return _BETWEEN.join(self.texts)


class Similarity(StrEnum):
    SOUND = "sound"
    LIKE_BASE = "answers_like_base"
    UNLIKE_ITSELF = "unlike_itself"
    SUSPECT = "engine_suspect"
    """The base model's answer has changed too, so the engine is at fault, not the version."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of one probe of a version. A distance is None if there is nothing to compare with."""

    result: Similarity
    to_base: float | None
    """Distance to the base model's answer on the same engine."""
    to_first: float | None
    """Distance to the version's own first answer."""
    drift: float | None
    """Distance of the base model on this engine to its own first answer."""
    limit: float
    """Largest distance from its first answer that the version is allowed here."""
    like: float = LIKE_BASE
    """Largest distance to the base model of an adapter without effect."""


def parse(body: Any, task: Task = "generate") -> ProbeAnswer:
    """Parse the response to `request`. Raises ValueError, LookupError, TypeError or AttributeError."""
    if task != "generate":
        items = sorted(body["data"], key=lambda item: item["index"])
        if len(items) != len(CONTEXTS):
            raise ValueError(f"{len(items)} answers to {len(CONTEXTS)} prompts")
        numbers = (
            [number for item in items for number in vectors.sketch(item["embedding"])]
            if task == "embed"
            else [_score(item["score"]) for item in items]
        )
        return replace(cost(body), logprobs=tuple(numbers), prompt=PROMPT_IDS[task])
    choices = sorted(body["choices"], key=lambda choice: choice["index"])
    if len(choices) != len(CONTEXTS):
        raise ValueError(f"{len(choices)} answers to {len(CONTEXTS)} prompts")
    logprobs = [lp for choice in choices for lp in _first(choice["logprobs"]["top_logprobs"])]
    texts = tuple(_text(choice["text"]) for choice in choices)
    return replace(cost(body), texts=texts, logprobs=tuple(logprobs))


def cost(body: Any) -> ProbeAnswer:
    """The token counts of a response, without what it says. Raises as `parse`."""
    usage = body["usage"]
    prompt = _tokens(usage["prompt_tokens"])
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return ProbeAnswer(
        (),
        (),
        prompt,
        None if cached is None else min(_tokens(cached), prompt),
        _tokens(usage.get("completion_tokens") or 0),
    )


def _first(steps: Sequence[Mapping[str, float]]) -> list[float]:
    likeliest = sorted((_logprob(lp) for lp in steps[0].values()), reverse=True)[:TOP]
    if len(likeliest) < TOP:
        raise ValueError(f"{len(likeliest)} logprobs, {TOP} requested")
    return likeliest


def _logprob(value: Any) -> float:
    """Rounding may push the logprob of a certain token slightly above zero."""
    if type(value) not in (int, float) or value > 1e-3:
        raise ValueError(f"{str(value)[:40]!r} is not a logprob")
    return max(-FARTHEST, float(value))


def _score(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{str(value)[:40]!r} is not a score")
    return max(-FARTHEST, min(FARTHEST, float(value)))


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise ValueError(f"{len(str(value))} characters are too many for {TOKENS} tokens")
    return value


def _tokens(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"a probe cannot take {str(value)[:40]} tokens")
    return value


PATHS: Mapping[Task, str] = {"generate": "/v1/completions", "embed": "/v1/embeddings", "score": "/v1/score"}
"""Where the requests below go."""


def request(model: str, salt: str, task: Task = "generate") -> dict[str, Any]:
    """The request body of a probe. `salt` must be unique, so that no prefix cache is hit."""
    if task != "generate":
        texts = list(CONTEXTS)
        return _pooled(model, salt, task, texts, [*texts[1:], texts[0]])
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


def _pooled(model: str, salt: str, task: Task, texts: list[str], others: list[str]) -> dict[str, Any]:
    inputs = {"input": texts} if task == "embed" else {"queries": texts, "documents": others}
    # Clients' requests have no `user` when they reach an engine, so that its log tells which are probes.
    return {"model": model, **inputs, "user": "florin", "cache_salt": salt}


def one_token(model: str, salt: str, task: Task = "generate") -> dict[str, Any]:
    """The request body of the cheapest call that reaches an engine's core. `salt`: as for `request`."""
    if task != "generate":
        return _pooled(model, salt, task, ["1"], ["1"])
    return {
        "model": model,
        "prompt": "1",
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": salt,
    }


SCORED: tuple[dict[str, Any], ...] = (
    {"prompt": "one two three", "prompt_logprobs": 1},
    {"prompt": "four five six", "echo": True, "logprobs": 1},
)
"""What makes of `one_token` a request that has its prompt scored."""
LONG: dict[str, Any] = {"max_tokens": 128}
"""What makes it last."""


def fingerprint(answer: ProbeAnswer, *, engine: str, gpu_type: str, taken: int) -> Fingerprint:
    return Fingerprint(answer.prompt, answer.text, answer.logprobs, engine, gpu_type, taken)


def answer_of(fingerprint: Fingerprint | None) -> ProbeAnswer | None:
    """The stored answer, or None if there is none or it was taken with other prompts."""
    if fingerprint is None or fingerprint.prompt not in PROMPT_IDS.values():
        return None
    texts = tuple(fingerprint.text.split(_BETWEEN)) if fingerprint.text else ()
    return ProbeAnswer(texts, fingerprint.logprobs, prompt=fingerprint.prompt)


def distance(first: ProbeAnswer | None, second: ProbeAnswer | None) -> float | None:
    """Mean absolute difference of the logprobs, in nats, or of the scores; of vectors, their mean distance.
    None if either answer is missing."""
    if first is None or second is None:
        return None
    if first.prompt != second.prompt or len(first.logprobs) != len(second.logprobs) or not first.logprobs:
        return FARTHEST
    if first.prompt == PROMPT_IDS["embed"]:
        return vectors.distance(first.logprobs, second.logprobs)
    pairs = zip(first.logprobs, second.logprobs, strict=True)
    return sum(abs(a - b) for a, b in pairs) / len(first.logprobs)


def is_itself(drift: float | None) -> bool:
    """Whether a base model at this distance from its first answer still counts as unchanged."""
    return drift is None or drift <= UNLIKE_ITSELF


def judge(
    answer: ProbeAnswer,
    *,
    base: ProbeAnswer | None,
    first: ProbeAnswer | None,
    first_base: ProbeAnswer | None,
    trusted: bool = False,
) -> Judgement:
    """Judge a version's answer. `base` is the base model's answer on the same engine; `first` and
    `first_base` are the first answers of the version and the base model on any engine. `trusted` versions may
    answer like the base model.

    Whatever shifts the base model's answer (another GPU type, quantization) shifts the version's too, so the
    limit grows with the base model's drift, up to a bound.
    """
    to_base, to_first = distance(answer, base), distance(answer, first)
    drift = distance(base, first_base)
    limit = min(MOST_UNLIKE, UNLIKE_ITSELF + 2 * (drift or 0.0))
    like = LIKE_BASE if answer.prompt == PROMPT_ID else LIKE_BASE_POOLED
    like = min(UNLIKE_ITSELF, max(like, NOISE * base.noise)) if base else like
    result = Similarity.SOUND
    if not trusted and to_base is not None and base and to_base <= like:
        noisy = base.noise > LIKE_BASE
        result = Similarity.LIKE_BASE if noisy or answer.texts == base.texts else result
    elif to_first is not None and to_first > limit:
        result = Similarity.UNLIKE_ITSELF
    if result is not Similarity.SOUND and not is_itself(drift):
        result = Similarity.SUSPECT
    return Judgement(result, to_base, to_first, drift, limit, like)


def evidence(
    judgement: Judgement,
    answer: ProbeAnswer,
    *,
    engine: str,
    base: ProbeAnswer | None,
    first: Fingerprint | None,
) -> dict[str, Any]:
    """The compared figures as JSON, for the operator. Distances in nats, `taken` in Unix microseconds,
    UTC."""
    known = answer_of(first)
    columns = [known.texts if known else (), base.texts if base else ()]
    rows = [
        {"prompt": prompt, "here": here, **_others(columns, index)}
        for index, (prompt, here) in enumerate(zip(CONTEXTS, answer.texts, strict=bool(answer.texts)))
    ]
    return {
        "engine": engine,
        "distance_to_base": _rounded(judgement.to_base),
        "like_base_up_to": _rounded(judgement.like),
        "distance_to_first": _rounded(judgement.to_first),
        "unlike_itself_over": _rounded(judgement.limit),
        "base_drift": _rounded(judgement.drift),
        "first": None
        if first is None
        else {"engine": first.engine, "gpu_type": first.gpu_type, "taken": first.taken},
        "answers": rows,
    }


def _others(columns: Sequence[Sequence[str]], index: int) -> dict[str, str | None]:
    first, base = (column[index] if index < len(column) else None for column in columns)
    return {"first": first, "base_here": base}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
