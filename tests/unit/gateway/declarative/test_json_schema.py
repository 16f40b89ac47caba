"""The JSON Schema of a fleet file accepts what `florin apply` reads, and refuses what it refuses."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gateway.declarative.commands import fleet_file
from gateway.declarative.operations.document import Document, parse
from gateway.declarative.operations.json_schema import OBJECTS, fleet_file_schema
from gateway.declarative.operations.sections import SECTIONS

GUIDE = Path(__file__).parents[4] / "docs" / "operators.md"
SCHEMA = jsonschema_rs.validator_for(fleet_file_schema())


@pytest.fixture
def example() -> dict[str, Any]:
    """That of the operator guide."""
    text = GUIDE.read_text().partition("## The installation as a file")[2]
    block = re.search(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    document = fleet_file.load(block[1])
    assert isinstance(document, dict)
    return document


def test_the_guides_example_is_valid_and_shows_every_section_that_people_write(example):
    SCHEMA.validate(example)
    assert SECTIONS.keys() - example.keys() == {"removed"}
    resolved = deepcopy(example)
    for key_id, key in resolved["keys"].items():
        key["secret"] = fleet_file.placeholder(key_id, key["secret"])
    parse(resolved)


@pytest.mark.parametrize(
    ("section", "id_", "field", "value"),
    [
        ("tenants", "acme", "requests_per_minute", 60),
        ("engines", "a1", "slots", 0),
        ("engines", "a1", "gpu_type", None),
        ("keys", "acme-production", "secret", "the-key-itself"),
        ("keys", "acme-production", "role", "enrolment"),
    ],
)
def test_a_mistake_is_refused(example, section: str, id_: str, field: str, value: Any):
    example[section][id_][field] = value
    assert not SCHEMA.is_valid(example)


def test_every_field_says_what_it_means():
    root = fleet_file_schema()
    assert root["$defs"].keys() == {name for name, _ in OBJECTS.values()}
    assert root["properties"].keys() == Document.model_fields.keys()
    objects = {"the document": root, **root["$defs"]}
    fields = {
        f"{name}.{field}": node
        for name, definition in objects.items()
        for field, node in definition.get("properties", {}).items()
    }
    assert len(fields) > 100
    assert not [name for name, node in fields.items() if not node.get("description")]
