"""Amounts as people type them."""

from __future__ import annotations

import pytest

from gateway.console import amounts
from gateway.console.api_client import ApiError


@pytest.mark.parametrize(
    ("text", "value"), [("", None), ("600", 600), ("1,000", 1000), ("100k", 100_000), (" 2 M ", 2_000_000)]
)
def test_counts(text, value):
    assert amounts.count("x", text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("", None), ("10", 10), ("10 GB", 10**10), ("512MiB", 512 << 20), ("7B", 7)]
)
def test_sizes(text, value):
    assert amounts.size("x", text) == value


def test_what_is_no_amount_is_refused_with_its_name():
    for parse, text in (
        (amounts.count, "1.5k"),
        (amounts.count, "-1"),
        (amounts.count, "٣"),
        (amounts.count, "1e9"),
        (amounts.size, "10 XB"),
        (amounts.size, "iB"),
        (amounts.money, "1e9"),
        (amounts.money, "0x10"),
        (amounts.labels, "region"),
        (amounts.labels, "a=1 a=2"),
    ):
        with pytest.raises(ApiError, match="Field: "):
            parse("Field", text)
    for text in ("nan", "inf", "-1", "1001"):
        with pytest.raises(ApiError):
            amounts.number("weight", text, 0.001, 1000)


def test_labels_and_words():
    assert amounts.labels("x", "region=eu  gpu_type=H100") == {"region": "eu", "gpu_type": "H100"}
    assert amounts.words("a, b\n c") == ["a", "b", "c"]
