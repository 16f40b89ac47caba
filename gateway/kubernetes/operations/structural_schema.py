"""pydantic's JSON Schema as Kubernetes wants it, and names as Kubernetes has them: a model's `min_replicas`
is a resource's `minReplicas`.

Kubernetes takes a subset, the structural schema: no references, one type a field, no unions. What it cannot
say, the gateway still checks, by the same models.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from gateway.kubernetes.resource import Json

_KEPT: Final = frozenset(
    {
        "type",
        "enum",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
    }
    | {"maxProperties", "minProperties", "required", "description"}
)
"""Words that mean the same in both."""
_LISTS: Final[dict[str, Json]] = {
    "versions": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["version"]},
    "shared_with": {"x-kubernetes-list-type": "set"},
    "conditions": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
}
"""Lists whose items can have several owners under server-side apply, and replace each other one by one. Any
other list has one owner, who replaces it whole."""


def structural(model: type[BaseModel]) -> Json:
    """With the model's own names of fields."""
    root = model.model_json_schema()
    return _structural(root, root.get("$defs", {}), "")


def _structural(node: Json, definitions: Json, name: str) -> Json:
    if "$ref" in node:
        target: Json = definitions[node["$ref"].rpartition("/")[2]]
        return _structural({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions, name)
    branches = [branch for branch in node.get("anyOf", ()) if branch.get("type") != "null"]
    if {branch.get("type") for branch in branches} == {"number", "string"}:  # an exact decimal
        return {"description": _described(node), "x-kubernetes-int-or-string": True}
    if branches:
        [branch] = branches  # left out is null
        merged = {**branch, **{k: v for k, v in node.items() if k != "anyOf"}}
        return _structural(merged, definitions, name)
    schema = {word: value for word, value in node.items() if word in _KEPT}
    if "description" in schema or "default" in node:
        schema["description"] = _described(node)
    if "const" in node:
        schema["enum"] = [node["const"]]
    for bound in ("Minimum", "Maximum"):
        if (limit := node.get(f"exclusive{bound}")) is not None:
            schema |= {bound.lower(): limit, f"exclusive{bound}": True}
    if "items" in node:
        schema["items"] = _structural(node["items"], definitions, "")
        schema |= _LISTS.get(name, {})
    if "properties" in node:
        schema["properties"] = {
            field: _structural(inner, definitions, field) for field, inner in node["properties"].items()
        }
    values = next(iter(node.get("patternProperties", {}).values()), node.get("additionalProperties"))
    if isinstance(values, dict):
        schema["additionalProperties"] = _structural(values, definitions, "")
    return schema


def _described(node: Json) -> str:
    """Defaults are the gateway's: an API server that filled them in would own the fields."""
    text, default = str(node.get("description", "")), node.get("default")
    if default in (None, "", [], {}, False):
        return text
    return f"{text} Default: {default}.".strip()


def camel(schema: Json) -> Json:
    """The schema with names as Kubernetes has them. Keys of maps, such as labels, stay."""
    renamed = dict(schema)
    if "properties" in schema:
        renamed["properties"] = {to_camel(name): camel(inner) for name, inner in schema["properties"].items()}
    if "required" in schema:
        renamed["required"] = [to_camel(name) for name in schema["required"]]
    for word in ("items", "additionalProperties"):
        if word in schema:
            renamed[word] = camel(schema[word])
    return renamed


def snake(value: Any, schema: Json) -> Any:
    """A value of a resource with the model's names. Unknown ones stay, for the models to refuse."""
    if isinstance(value, list) and "items" in schema:
        return [snake(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    if "additionalProperties" in schema:
        return {name: snake(inner, schema["additionalProperties"]) for name, inner in value.items()}
    fields = {to_camel(name): (name, inner) for name, inner in schema.get("properties", {}).items()}
    known = ((fields.get(name, (name, {})), inner) for name, inner in value.items())
    return {name: snake(inner, of_field) for (name, of_field), inner in known}
