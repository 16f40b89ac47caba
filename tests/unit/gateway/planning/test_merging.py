"""When an adapter is worth an engine with its weights."""

from __future__ import annotations

import pytest

from gateway.planning.merging import gain, request_seconds, speedup, token_ms
from gateway.planning.simulator.hardware import Hardware

H200 = Hardware.of("h200")


def test_the_figures_are_those_of_the_engine_model():
    """Measured at batch 128: 6.65 ms a token without an adapter, 10.8 with one."""
    plain, lora = token_ms(H200, merged=True), token_ms(H200, merged=False)
    assert plain == pytest.approx(6.65, rel=0.1)
    assert lora == pytest.approx(10.8, rel=0.1)
    assert request_seconds(H200, 0, 200, merged=True) == pytest.approx(200 * plain / 1000 / 128)
    assert speedup(H200, prompt=0, output=200) == pytest.approx(lora / plain)
    full = H200.budget - 128
    fixed = H200.prompt + H200.launch
    seconds = request_seconds(H200, full, 0, merged=True)
    assert seconds == pytest.approx((fixed + H200.prompt_token * full) / 1000)
    seconds = request_seconds(H200, full, 0, merged=False)
    assert seconds == pytest.approx((fixed + H200.lora_launch + H200.prompt_token * full) / 1000)


@pytest.mark.parametrize(
    ("busy", "engines", "saved"),
    [
        pytest.param(0.9, None, 0.0, id="not enough to fill one"),
        pytest.param(1.03, None, 0.0, id="hardly worth the work"),
        pytest.param(1.4, 1, 0.4, id="one takes all"),
        pytest.param(1.8, 1, 0.6, id="one takes what it can, the rest stays"),
        pytest.param(3.0, 2, 1.0, id="two take nearly all"),
        pytest.param(16.0, 10, 6.0, id="ten"),
    ],
)
def test_merged_engines_pay_once_the_adapter_alone_fills_them(busy: float, engines: int | None, saved: float):
    gained = gain(busy, 1.6)
    assert (gained and gained.engines) == engines
    assert (gained.saved if gained else 0.0) == pytest.approx(saved)
