import pytest

from gateway.metering.token_counts import MAX_TOKENS_PER_CHOICE, Counts, read_counts

TOP = MAX_TOKENS_PER_CHOICE


def usage(prompt=7, completion=5, cached=None, reasoning=None):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": "whatever",
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "completion_tokens_details": None if reasoning is None else {"reasoning_tokens": reasoning},
    }


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (usage(), Counts(7, 5, None, 0)),
        (usage(cached=7, reasoning=5), Counts(7, 5, 7, 5)),
        (usage(cached=0, reasoning=0), Counts(7, 5, 0, 0)),
        (usage(0, 0), Counts(0, 0, None, 0)),
        (usage(TOP, TOP), Counts(TOP, TOP, None, 0)),
        ({}, Counts(0, 0, None, 0)),
        ({"prompt_tokens": 3}, Counts(3, 0, None, 0)),
        (usage(None, None), Counts(0, 0, None, 0)),
        (
            {"prompt_tokens": 3, "prompt_tokens_details": {}, "completion_tokens_details": {}},
            Counts(3, 0, None, 0),
        ),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}, Counts(3, 0, None, 0)),
        (
            {"completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": None}},
            Counts(0, 3, None, 0),
        ),
    ],
)
def test_sound_counts_are_read(said, counts):
    assert read_counts(said, prompts=1, choices=1) == counts


BAD_NUMBERS = [
    -1, TOP + 1, 2**63, 10**40, 1.0, 0.0, 1e400, float("nan"), True, False, "7", "",
    '7,"tenant":"victim"', [1], {}, {"a": 1}, b"7",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize("field", ["prompt", "completion", "cached", "reasoning"])
def test_anything_else_is_refused(field, bad):
    said = usage(**{"prompt": TOP, "completion": TOP, field: bad})
    assert read_counts(said, prompts=1, choices=1) is None


@pytest.mark.parametrize("said", [None, [], [1, 2], "7", 7, True, [["prompt_tokens", 7]]])
def test_no_object_is_no_usage(said):
    assert read_counts(said, prompts=1, choices=1) is None


@pytest.mark.parametrize("bad", [[], [1], "cached_tokens", 7, 0, True, False, ""])
@pytest.mark.parametrize("field", ["prompt_tokens_details", "completion_tokens_details"])
def test_details_are_objects(field, bad):
    assert read_counts(usage() | {field: bad}, prompts=1, choices=1) is None


def test_no_part_is_above_its_whole():
    assert read_counts(usage(cached=8), prompts=1, choices=1) is None
    assert read_counts(usage(reasoning=6), prompts=1, choices=1) is None


def test_the_bounds_grow_with_what_was_asked_for():
    assert read_counts(usage(2 * TOP, 6 * TOP), prompts=2, choices=6) is not None
    assert read_counts(usage(2 * TOP + 1, 1), prompts=2, choices=6) is None
    assert read_counts(usage(1, 6 * TOP + 1), prompts=2, choices=6) is None
