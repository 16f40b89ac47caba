"""The CustomResourceDefinitions: what Kubernetes takes, and the same fields as a fleet file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from gateway.declarative.operations.document import read
from gateway.declarative.operations.specs import AdapterSpec, TenantSpec
from gateway.kubernetes.operations.decisions import document
from gateway.kubernetes.operations.definitions import DEFINITIONS, definition, pool
from gateway.kubernetes.operations.structural_schema import snake, structural
from gateway.kubernetes.resource import GROUP, PLURALS, VERSION, Resource

GUIDE = Path(__file__).parents[4] / "docs" / "deployment" / "resources.md"


def schema_of(kind: Any) -> dict[str, Any]:
    return definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def examples() -> Iterator[dict[str, Any]]:
    for block in re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        yield from (d for d in yaml.safe_load_all(block) if d.get("apiVersion") == f"{GROUP}/{VERSION}")


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from nodes(inner)
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from nodes(schema[word])


@pytest.mark.parametrize("kind", PLURALS)
def test_the_schemas_are_structural(kind):
    """Otherwise the API server refuses the definition."""
    for node in nodes(schema_of(kind)):
        assert ("type" in node) != (node.get("x-kubernetes-int-or-string") is True), node
        assert not node.keys() & {"$ref", "anyOf", "oneOf", "const", "title", "patternProperties"}
        assert not {"properties", "additionalProperties"} <= node.keys()
        assert isinstance(node.get("exclusiveMinimum", True), bool)
        if "pattern" in node:
            assert "(?" not in node["pattern"], "Go's regular expressions look neither ahead nor back"
        if "x-kubernetes-list-map-keys" in node:
            assert set(node["x-kubernetes-list-map-keys"]) <= set(node["items"]["required"])


@pytest.mark.parametrize(("kind", "spec"), [("Tenant", TenantSpec), ("LoraAdapter", AdapterSpec)])
def test_a_resource_has_every_field_of_a_fleet_file(kind, spec):
    fields = structural(DEFINITIONS[kind].spec)["properties"]
    assert fields.keys() - spec.model_fields.keys() <= {"name", "tenant", "management"}
    assert spec.model_fields.keys() <= fields.keys()
    assert all(field.get("description") for field in fields.values())


def test_the_guides_examples_are_valid_and_show_each_kind():
    kinds = set()
    for body in examples():
        resource = Resource(body["kind"], body)
        kinds.add(resource.kind)
        jsonschema_rs.Draft4Validator(schema_of(resource.kind)).validate(body)
        if resource.kind == "EnginePool":
            pool(resource)
        else:
            assert read(document([resource]))[1] == ()
    assert kinds == PLURALS.keys()


def test_only_names_of_fields_change():
    schema = structural(DEFINITIONS["Tenant"].spec)
    spec = {"baseAccess": True, "requires": {"fooBar": "x"}, "limits": {"requestsPerMinute": 5}, "noField": 1}
    assert snake(spec, schema) == {
        "base_access": True, "requires": {"fooBar": "x"}, "limits": {"requests_per_minute": 5}, "noField": 1,
    }  # fmt: skip
