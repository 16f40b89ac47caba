"""Patterns are matched all at once and mean what they mean in PEFT, which tries one after the other."""

from __future__ import annotations

import math
import re

from hypothesis import example, given
from hypothesis import strategies as st

from adapters.checks.findings import Findings
from adapters.checks.peft_config import check_config
from adapters.checks.suffixes import SuffixIndex
from adapters.checks.wildcards import wildcard
from tests.support.lora import lora_config
from tests.support.search import examples

PARTS = st.sampled_from(["a", "b", "ab", "1", "12", "q_proj", "x1"])
PATHS = st.lists(PARTS, min_size=1, max_size=5).map(".".join)
TOKENS = st.sampled_from(["a", "b", "1", "2", "_", ".", r"\.", r"\d+", "[0-9]+", "ab", "q_proj", ".q_proj"])
NAMES = st.lists(TOKENS, min_size=1, max_size=5).map("".join)
PLAIN = st.builds(
    "{}{}{}".format, st.sampled_from(["", "", "^", r".*\.", ".*."]), NAMES, st.sampled_from(["", "$"])
)
INNER = st.lists(NAMES, min_size=1, max_size=3).map("|".join)
CHOICES = st.builds(
    "{}{}{}){}".format,
    st.sampled_from(["", "a.", r".*\.", "^"]),
    st.sampled_from(["(", "(?:"]),
    INNER,
    st.sampled_from(["", ".a", "_b"]),
)
PIECES = st.builds(
    "{}{}{}".format, NAMES, st.sampled_from(["ab", "q_proj", "ab.", "_a"]), NAMES | st.just("")
)
WILD = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", "^", ".*"]),
    PIECES,
    st.lists(st.builds("{}{}".format, st.sampled_from([".*", ".+"]), PIECES), max_size=2).map("".join),
    st.sampled_from([".*", ".+", ".*ab", ".+q_proj"]),
    st.sampled_from(["", "$"]),
).filter(wildcard)
KEYS = st.one_of(PLAIN, CHOICES, INNER, WILD)


def peft(patterns: dict[str, int], path: str, default: int) -> int:
    """As PEFT's `get_pattern_key` finds it."""
    return next((v for k, v in patterns.items() if re.match(rf"(.*\.)?({k})$", path)), default)


@given(ranks=st.lists(KEYS, max_size=6), alphas=st.lists(KEYS, max_size=6), paths=st.lists(PATHS, max_size=6))
@example([r".*\.a"], ["a"], ["a", "b.a"])  # a dot must be there
@example(["..q_proj"], [".*.a"], ["x1.q_proj", "ab"])  # a dot may be any character
@example([r"\d+1.a", "a"], [r"1\d+"], ["b.121.a", "12", "1"])  # digits are given back
@example(["q_proj.*"], [".*ab.*_a.+q_proj$"], ["b.q_proj", "ab.x1.b_a.q_proj", "xq_proj"])
@example(
    [r"ab.*ab\d+.*1ab"], ["ab.+"], ["ab.ab11ab", "ab.ab1ab", "ab", "ab."]
)  # digits are given back here too
@examples(300)
def test_the_first_pattern_that_matches_counts(ranks, alphas, paths):
    rank_pattern = {key: rank for rank, key in enumerate(ranks, 2)}
    alpha_pattern = {key: alpha for alpha, key in enumerate(alphas, 2)}
    config = lora_config(r=1, lora_alpha=1, rank_pattern=rank_pattern, alpha_pattern=alpha_pattern)
    lora = check_config(config, max_rank=64, fleet_ranks=(), findings=(findings := Findings()))
    assert lora, findings.all()
    for path in paths:
        rank = peft(rank_pattern, path, 1)
        assert lora.rank_of(path) == rank
        assert math.isclose(lora.scaling_of(path), peft(alpha_pattern, path, 1) / rank)


@given(names=st.lists(PATHS, max_size=6), path=PATHS)
@examples(100)
def test_a_name_matches_at_a_dot(names, path):
    ends = {name for name in names if path == name or path.endswith(f".{name}")}
    assert set(SuffixIndex.of_names(names).each(path)) == ends
