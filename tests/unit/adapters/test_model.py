"""What engines say of themselves, and how little of it is stored."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from adapters.model import Adapter, Engine, dump, load

ENGINE = Engine("e1", "http://10.0.0.7:8000", "base", "H100", 2, 8)
EU = replace(ENGINE, region="eu", labels={"pool": "acme"})


@pytest.mark.parametrize(
    ("engine", "requires", "meets"),
    [
        (ENGINE, {}, True),
        (ENGINE, {"region": "eu"}, False),
        (ENGINE, {"gpu_type": "H100"}, True),
        (EU, {"region": "eu", "gpu_type": "H100", "pool": "acme"}, True),
        (EU, {"region": "eu", "pool": "bolt"}, False),
        (EU, {"pool": "acme", "tier": "1"}, False),
    ],
)
def test_an_engine_meets_what_all_its_labels_say(engine, requires, meets):
    assert engine.meets(requires) is meets


@pytest.mark.parametrize(
    ("url", "host", "domain"),
    [
        ("http://10.0.0.7:8000", "", "10.0.0.7"),
        ("http://[fd00::7]:8000", "", "fd00::7"),
        ("https://gpu7.example:8000/x", "", "gpu7.example"),
        ("http://10.0.0.7:8000", "rack7", "rack7"),
    ],
)
def test_engines_of_one_host_fail_together_unless_told_otherwise(url, host, domain):
    assert replace(ENGINE, url=url, host=host).domain == domain


def test_defaults_are_not_stored():
    assert not {"labels", "host"} & json.loads(dump(ENGINE)).keys()
    assert not {"min_replicas", "max_replicas"} & json.loads(dump(Adapter("acme/a", 1))).keys()
    for document in (replace(EU, host="rack7"), Adapter("acme/a", 1, min_replicas=2, max_replicas=3)):
        assert load(type(document), dump(document)) == document
