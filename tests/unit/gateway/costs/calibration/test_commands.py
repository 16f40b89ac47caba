"""florin calibrate: the whole command against an engine that answers at once; the figures are for real ones."""

import json

import pytest

from gateway.costs.calibration.schemas import Calibration
from gateway.fleet.adapters.schemas.adapters import VersionDetails
from gateway.fleet.engines.schemas.engines import Engine
from loadtests.mock_engine.process import MockProcess
from tests.support.harness import fake_adapter
from tests.support.samples import sample

QUICK = ("--seconds", "0.05", "--repeats", "1")


@pytest.fixture(scope="module")
def engine():
    with MockProcess(max_model_len=256) as process:
        yield process


def listed(fake, at, **fields):
    row = {"name": "e0", "url": at, "base": "base", "gpu_type": "H100", "gpu_count": 2, "state": "draining"}
    fake.answer("GET", "/admin/v1/engines", {"data": [sample(Engine, **row | fields)]})


def test_it_measures_and_keeps_the_weights(fake, engine, tmp_path):
    listed(fake, engine.url)
    earlier = len(engine.log()["admin"])
    path = str(fake_adapter(tmp_path / "adapter"))
    fake.answer(
        "GET", "/admin/v1/adapters/acme/support/versions", {"data": [sample(VersionDetails, path=path)]}
    )
    kept = sample(Calibration, valid_from="2026-11-21T14:00:00Z")
    fake.answer("POST", "/admin/v1/calibrations", kept, 201)
    done = fake.florin("calibrate", "e0", "--adapter", "acme/support", *QUICK)
    assert done.exit_code == 0, done.output
    assert "Stored for H100 with base, valid from 2026-11-21T14:00:00Z." in done.stdout
    sent = fake.asked[-1][2]
    assert (sent["gpu_type"], sent["base_model"], sent["engine_version"]) == ("H100", "base", "0.32.0")
    assert set(sent["weights_ps"]) == {"prefill", "cached", "decode", "kv", "load"}
    samples = sent["document"]["samples"]
    assert {s["phase"] for s in samples} == {"prefill", "cached", "decode", "mixed", "load"}
    assert all(s["gpus"] == 2 and s["seconds"] > 0 for s in samples)
    assert all(s["cached"] > s["computed"] for s in samples if s["phase"] == "cached")
    assert all(s["cached"] == 0 for s in samples if s["phase"] in {"prefill", "decode"})
    assert sum(s["loads"] for s in samples) == 5
    calls = engine.log()["admin"][earlier:]
    assert len({c["name"] for c in calls}) == 5  # no name that the engine knew
    assert [c["action"] for c in calls] == ["load", "unload"] * 5  # and nothing left behind


def test_a_dry_run_keeps_nothing(fake, engine):
    listed(fake, engine.url)
    done = fake.florin("calibrate", "e0", *QUICK, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["document"]["fit"]["weights"]["load"]["measured"] is False
    assert {method for method, *_ in fake.asked} == {"GET"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "active"}, "drain it first"),
        ({"running": 3}, "3 requests"),
        ({"name": "other"}, "No such engine: 'e0'"),
    ],
)
def test_it_measures_only_what_does_nothing_else(fake, fields, words):
    listed(fake, "http://127.0.0.1:1", **fields)
    refused = fake.florin("calibrate", "e0", *QUICK)
    assert refused.exit_code == 2
    assert words in refused.stderr
