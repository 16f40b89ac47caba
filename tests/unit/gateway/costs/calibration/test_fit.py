"""The fit finds what made the measurements, says how sure it is, and never invents a negative price."""

import random

import pytest

from gateway.costs.calibration.fit import TERMS, CalibrationError, LoadSample, fit

TRUE = {"prefill": 50e-6, "cached": 1e-6, "decode": 200e-6, "kv": 0.1e-6, "load": 0.02}


def samples(noise=0.0, *, seed=7, repeats=6, gpus=1, without=()):
    draw = random.Random(seed)
    made = []
    for _ in range(repeats):
        for phase, computed, cached, completion, kv, loads in (
            ("prefill", 20_000, 0, 10, 5_000, 0),
            ("cached", 100, 50_000, 50, 9_000, 0),
            ("decode", 200, 0, 9_000, 40_000, 0),
            ("mixed", 30_000, 0, 4_000, 900_000, 0),
            ("load", 8, 0, 1, 0.2, 1),
        ):
            if phase in without:
                continue
            counts = [n * draw.uniform(0.5, 2) for n in (computed, cached, completion, kv)]
            spent = sum(c * w for c, w in zip((*counts, loads), TRUE.values(), strict=True))
            seconds = spent / gpus * draw.uniform(1 - noise, 1 + noise)
            made.append(LoadSample(phase, seconds, gpus, *counts, loads, 10))
    return made


def test_exact_measurements_give_exact_weights_of_one_gpu():
    found = fit(samples(gpus=8))
    for weight in found.weights:
        assert weight.picoseconds == pytest.approx(TRUE[weight.term] * 1e12, rel=1e-6)
        assert weight.measured
    assert found.r_squared == pytest.approx(1)
    assert found.worst == pytest.approx(0, abs=1e-9)
    document = found.document()
    assert tuple(document["weights"]) == TERMS
    assert document["samples"] == 30


def test_noisy_measurements_give_intervals_around_the_truth_and_always_the_same():
    found = fit(samples(noise=0.05))
    assert found == fit(samples(noise=0.05))
    for weight in found.weights:
        assert weight.low <= weight.picoseconds <= weight.high
        assert weight.low * 0.9 <= TRUE[weight.term] * 1e12 <= weight.high * 1.1
        assert weight.low < weight.high
    assert 0.9 < found.r_squared < 1
    assert 0.01 < found.worst < 0.2


def test_what_no_measurement_had_is_said_to_be_unknown():
    found = {w.term: w for w in fit(samples(without=("load", "cached"))).weights}
    assert (found["load"].measured, found["load"].picoseconds) == (False, 0)
    assert not found["cached"].measured
    assert found["decode"].measured


def test_no_weight_is_negative():
    """Cached tokens that seem to save time: least squares alone would pay for them."""
    odd = [LoadSample("a", 1.0 - 0.01 * i, 1, 10_000, 1_000 * i, 10, 1.0, 0, 1) for i in range(8)]
    assert all(w.picoseconds >= 0 and w.low >= 0 for w in fit(odd).weights)


@pytest.mark.parametrize(
    ("few", "words"),
    [(samples()[:5], "too few"), ([LoadSample("a", 0.0, 1, 1, 0, 1, 1.0, 0, 1)] * 6, "no time")],
)
def test_what_cannot_be_fitted_is_refused(few, words):
    with pytest.raises(CalibrationError, match=words):
        fit(few)
