"""What two answers say of each other, in numbers and in words."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest

from adapters.placement.fingerprint import (
    BASE_ANSWERS,
    CONTEXTS,
    FARTHEST,
    LIKE_BASE,
    MOST_UNLIKE,
    PROMPT_ID,
    TOKENS,
    TOP,
    UNLIKE_ITSELF,
    ProbeAnswer,
    Similarity,
    answer_of,
    distance,
    evidence,
    fingerprint,
    judge,
    parse,
    request,
)
from adapters.placement.scheduling.figures import ENGINE_MODELS
from loadtests.gpu.results import committed

COUNT = len(CONTEXTS) * TOP


def answer(lp: float, word: str = " a") -> ProbeAnswer:
    return ProbeAnswer((word,) * len(CONTEXTS), (lp,) * COUNT)


def body(lp: float = -1.0, prompts: int = len(CONTEXTS)) -> dict:
    """A completion as vLLM sends it, its choices in any order."""
    step = {f"token_id:{n}": lp - n for n in range(TOP)}
    choice = {"text": " a", "logprobs": {"top_logprobs": [step] * TOKENS}}
    usage = {"prompt_tokens": 60, "completion_tokens": prompts * TOKENS}
    return {"choices": [{**choice, "index": i} for i in reversed(range(prompts))], "usage": usage}


def test_what_is_asked_for_is_what_is_read():
    asked = request("fl-1", "salt")
    assert (asked["model"], asked["prompt"], asked["max_tokens"]) == ("fl-1", list(CONTEXTS), TOKENS)
    assert (asked["temperature"], asked["logprobs"], asked["cache_salt"]) == (0, TOP, "salt")
    assert "prompt_logprobs" not in asked  # it kills the engine that has adapters in the batch
    read = parse(body(-1.0))
    assert read.logprobs == tuple(-1.0 - n for n in range(TOP)) * len(CONTEXTS)
    assert read.texts == (" a",) * len(CONTEXTS)
    assert (read.prompt_tokens, read.completion_tokens) == (60, len(CONTEXTS) * TOKENS)


def test_the_order_of_choices_and_of_tokens_does_not_matter():
    mixed = body()
    mixed["choices"].reverse()
    first = mixed["choices"][0]["logprobs"]["top_logprobs"]
    first[0] = dict(reversed(first[0].items()))
    assert parse(mixed) == parse(body())


@pytest.mark.parametrize(
    "wrong",
    [
        body(prompts=1),
        {},
        {"choices": None},
        {"choices": [{"index": 0, "text": "", "logprobs": None}] * len(CONTEXTS), "usage": {}},
        {**body(), "usage": {}},
        {**body(), "usage": {"prompt_tokens": 10**30, "completion_tokens": 1}},
        {**body(), "usage": {"prompt_tokens": -1, "completion_tokens": 1}},
        {**body(), "usage": {"prompt_tokens": "60", "completion_tokens": 1}},
        {**body(), "usage": {"prompt_tokens": 60.0, "completion_tokens": 1}},
        {**body(), "usage": {"prompt_tokens": True, "completion_tokens": 1}},
        {**body(), "usage": {"prompt_tokens": 60, "completion_tokens": 100_001}},
        {
            **body(),
            "usage": {
                "prompt_tokens": 60,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": "60"},
            },
        },
        {**body(), "usage": {"prompt_tokens": 60, "completion_tokens": 1, "prompt_tokens_details": [60]}},
        [],
        {
            "choices": [
                {"index": i, "text": "", "logprobs": {"top_logprobs": [{"a": -1.0}]}} for i in range(8)
            ]
        },
    ],
)
def test_what_is_no_answer_is_refused(wrong):
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        parse(wrong)


def test_an_impossible_token_counts_no_more_than_the_farthest():
    assert min(parse(body(float("-inf"))).logprobs) == -FARTHEST


def test_distance_is_the_mean_over_all_logprobs():
    one = ProbeAnswer((), (-1.0, -2.0))
    assert distance(one, ProbeAnswer((), (-1.5, -2.0))) == 0.25
    assert distance(one, one) == 0.0
    assert distance(one, None) is None
    assert distance(None, one) is None
    assert distance(one, ProbeAnswer((), (-1.0,))) == FARTHEST  # another number of answers: not comparable
    assert distance(ProbeAnswer((), ()), ProbeAnswer((), ())) == FARTHEST


BASE = answer(-1.0, " the")


@pytest.mark.parametrize(
    ("name", "given", "result"),
    [
        ("its first load", {"answer": answer(-2.0)}, Similarity.SOUND),
        ("itself again", {"answer": answer(-2.0), "first": answer(-2.0 - UNLIKE_ITSELF * 0.9)}, Similarity.SOUND),
        ("another", {"answer": answer(-2.0), "first": answer(-2.0 - UNLIKE_ITSELF * 1.1)}, Similarity.UNLIKE_ITSELF),
        ("the base", {"answer": BASE}, Similarity.LIKE_BASE),
        ("nearly the base", {"answer": answer(-1.0 - LIKE_BASE * 0.9, " the")}, Similarity.LIKE_BASE),
        ("not quite the base", {"answer": answer(-1.0 - LIKE_BASE * 1.1, " the")}, Similarity.SOUND),
        ("the base's numbers, other words", {"answer": answer(-1.0, " my")}, Similarity.SOUND),
        ("the base, trusted", {"answer": BASE, "trusted": True}, Similarity.SOUND),
        ("trusted, but another", {"answer": BASE, "first": answer(-9.0), "trusted": True}, Similarity.UNLIKE_ITSELF),
        ("the base, where it was none", {"answer": BASE, "first": answer(-9.0)}, Similarity.LIKE_BASE),
        ("no base to ask", {"answer": BASE, "base": None}, Similarity.SOUND),
        ("no base to ask, but another", {"answer": BASE, "base": None, "first": answer(-9.0)}, Similarity.UNLIKE_ITSELF),
        ("a base that drifts far", {"answer": answer(-5.0), "first": answer(-9.0), "first_base": answer(-3.0)},
         Similarity.SUSPECT),
        ("like a base that drifts far", {"answer": BASE, "first_base": answer(-3.0)}, Similarity.SUSPECT),
        ("sound, though the base drifts", {"answer": answer(-9.0), "first": answer(-9.0), "first_base": answer(-3.0)},
         Similarity.SOUND),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_judgement(name: str, given: dict, result: Similarity):
    assert judge(**{"base": BASE, "first": None, "first_base": BASE} | given).result is result


def test_what_moves_the_base_excuses_as_much_of_the_version_but_not_everything():
    def judged(off: float, drift: float) -> Similarity:
        first_base = answer(-1.0 - drift, " the")
        return judge(answer(-4.0), base=BASE, first=answer(-4.0 - off), first_base=first_base).result

    assert judged(0.2, 0.0) is Similarity.UNLIKE_ITSELF
    assert judged(0.2, 0.1) is Similarity.SOUND  # another type of GPU
    assert judged(MOST_UNLIKE + 0.1, 0.14) is Similarity.UNLIKE_ITSELF
    assert judged(MOST_UNLIKE + 0.1, 3.0) is Similarity.SUSPECT


def test_a_fingerprint_holds_the_answer_and_others_prompts_are_not_compared():
    given = answer(-1.5, " some")
    kept = fingerprint(given, engine="e1", gpu_type="h100", taken=7)
    assert (kept.prompt, kept.engine, kept.gpu_type, kept.taken) == (PROMPT_ID, "e1", "h100", 7)
    assert answer_of(kept) == given
    assert answer_of(replace(kept, prompt="of an older Florin")) is None
    assert answer_of(None) is None


def test_the_evidence_shows_what_was_compared():
    first = fingerprint(answer(-9.0, " my"), engine="e1", gpu_type="h100", taken=7)
    judged = judge(BASE, base=BASE, first=answer_of(first), first_base=BASE)
    shown = evidence(judged, BASE, engine="e2", base=BASE, first=first)
    assert (shown["engine"], shown["distance_to_base"], shown["distance_to_first"]) == ("e2", 0.0, 8.0)
    assert (shown["like_base_up_to"], shown["unlike_itself_over"]) == (LIKE_BASE, UNLIKE_ITSELF)
    assert shown["first"] == {"engine": "e1", "gpu_type": "h100", "taken": 7}
    row = {"prompt": CONTEXTS[0], "here": " the", "base_here": " the", "first": " my"}
    assert shown["answers"][0] == row
    bare = evidence(
        judge(BASE, base=None, first=None, first_base=None), BASE, engine="e", base=None, first=None
    )
    assert bare["answers"][0] == {"prompt": CONTEXTS[0], "here": " the", "base_here": None, "first": None}
    assert (bare["first"], bare["distance_to_base"]) == (None, None)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("choices", 0, "text"), "x" * 100_000),
        (("choices", 0, "text"), ["x"]),
        (("choices", 0, "logprobs", "top_logprobs", 0, "token_id:0"), 1e308),
        (("choices", 0, "logprobs", "top_logprobs", 0, "token_id:0"), "-1"),
        (("choices", 0, "logprobs", "top_logprobs", 0, "token_id:0"), None),
        (("usage", "prompt_tokens"), 9 * 10**18),
        (("usage", "prompt_tokens"), -1),
        (("usage", "completion_tokens"), 1e400),
        (("usage", "completion_tokens"), True),
        (("usage", "prompt_tokens_details"), {"cached_tokens": "many"}),
        (("usage",), [1, 2]),
        (("choices",), [None]),
        (("choices",), {}),
    ],
)
def test_an_answer_that_no_engine_gives_is_none(path, value):
    sent = body()
    at = sent
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        parse(sent)


def test_more_cached_tokens_than_tokens_are_all_of_them():
    sent = body()
    sent["usage"]["prompt_tokens_details"] = {"cached_tokens": 61}
    assert parse(sent).cached_tokens == 60


# -- with the answers of GPUs


def answers_of(gpu: str) -> dict[str, list[ProbeAnswer]]:
    """Answers of one engine in bfloat16, by model."""
    answers = defaultdict(list)
    for each in committed(gpu).rounds("fingerprints"):
        answers[each["model"]].append(ProbeAnswer(tuple(each["texts"]), tuple(each["logprobs"])))
    return answers


@pytest.fixture(scope="module", params=ENGINE_MODELS)
def recorded(request: pytest.FixtureRequest) -> dict[str, list[ProbeAnswer]]:
    return answers_of(request.param)


def drawn(recorded, number: int = 500):
    """A base model's answer with the engine's noise as verification measures it, and one more answer."""
    chance = random.Random(1)
    for _ in range(number):
        first, *others, last = chance.sample(recorded["base"], BASE_ANSWERS + 1)
        yield replace(first, noise=max(distance(first, other) for other in others)), last


def test_in_bfloat16_an_adapter_without_effect_is_seldom_missed(recorded):
    """It answers as the base model does: each time a little differently."""
    results = [
        judge(answer, base=base, first=None, first_base=None).result for base, answer in drawn(recorded)
    ]
    assert results.count(Similarity.SOUND) < 0.1 * len(results)
    blind = [judge(answer, base=replace(base, noise=0.0), first=None, first_base=None).result
             for base, answer in drawn(recorded)]  # fmt: skip
    assert blind.count(Similarity.SOUND) > 0.7 * len(blind), "the noise is what tells"


def test_in_bfloat16_sound_adapters_stay_sound_and_wrong_ones_do_not(recorded):
    itself = recorded["adapter 0"]
    for base, first_base in drawn(recorded, 50):
        for name, answers in recorded.items():
            for answer in answers if name != "base" else ():
                assert judge(answer, base=base, first=None, first_base=None).result is Similarity.SOUND
        for answer in itself:
            result = judge(answer, base=base, first=itself[0], first_base=first_base).result
            assert result is Similarity.SOUND
        for name in ("adapter 0, B times 0.1", "adapter 1", "adapter 2"):
            result = judge(recorded[name][0], base=base, first=itself[0], first_base=first_base).result
            assert result is Similarity.UNLIKE_ITSELF


@pytest.mark.parametrize(("first_on", "now_on"), [("h200", "h100"), ("h100", "h200")])
def test_in_bfloat16_a_sound_adapter_stays_sound_on_another_type_of_gpu(first_on: str, now_on: str):
    """The same weights on both."""
    before, now = answers_of(first_on), answers_of(now_on)
    for (base, _), first_base in product(drawn(now, 2), before["base"]):
        for first, answer in product(before["adapter 0"], now["adapter 0"]):
            assert judge(answer, base=base, first=first, first_base=first_base).result is Similarity.SOUND
