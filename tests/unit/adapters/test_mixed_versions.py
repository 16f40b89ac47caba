"""Gateways of two releases on one registry: what docs/upgrading.md promises of documents."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields

import pytest

from adapters.model import Adapter, BaseModel, Engine, Version, dump, load

DOCUMENTS = [
    Engine("e1", "http://e1", "base", "h100", slots=2, max_rank=8),
    Version("acme/a", 1, "sha256:0", "fl-1", "/a", "base", 8, 1, "x", 1),
    Adapter("acme/a", live=1),
    BaseModel("base"),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: type(d).__name__)
def test_a_field_of_the_next_release_is_ignored(document):
    later = json.loads(dump(document)) | {"of_the_next_release": {"x": 1}}
    assert load(type(document), json.dumps(later)) == document


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: type(d).__name__)
def test_a_field_that_the_release_before_did_not_write_has_its_default(document):
    required = {f.name for f in fields(document) if f.default is MISSING and f.default_factory is MISSING}
    earlier = {name: value for name, value in json.loads(dump(document)).items() if name in required}
    assert load(type(document), json.dumps(earlier)) == document
