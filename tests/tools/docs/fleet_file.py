"""The fleet file: a page with every object, and its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gateway.declarative.operations.json_schema import fleet_file_schema
from tests.tools.docs.markdown import code, document, linked, table

Json = dict[str, Any]

_INTRODUCTION = """
`florin export` writes a fleet file, and `florin apply` changes an installation to match one; [the operator
guide](../operators.md#the-installation-as-a-file) says how. `florin fleet-file check` checks a file without a
gateway.

The [JSON Schema](fleet-file.schema.json) of this page makes editors complete and check the file. `florin
fleet-file schema` prints the one of your release:

```
florin fleet-file schema > fleet.schema.json
```

```yaml
# yaml-language-server: $schema=fleet.schema.json
florin: 1
```

A field that is left out gets its default, or none; [a few](../operators.md#the-installation-as-a-file) stay
as they are, and so does a section that is left out.
"""


def schema() -> str:
    return json.dumps(fleet_file_schema(), indent=1) + "\n"


def page() -> str:
    root = fleet_file_schema()
    objects = root["$defs"]
    return document(
        "Fleet file",
        _INTRODUCTION,
        "## Sections",
        _fields(root),
        *(part for name, node in objects.items() if "properties" in node for part in _object(name, node)),
    )


def _object(name: str, node: Json) -> Iterator[str]:
    yield f"## {name}"
    yield linked(node["description"])
    yield _fields(node)


def _fields(node: Json) -> str:
    rows = (
        (code(name), _type(field), _default(node, name, field), _meaning(field))
        for name, field in node["properties"].items()
    )
    return table(("field", "type", "default", "meaning"), rows)


def _default(node: Json, name: str, field: Json) -> str:
    if name in node.get("required", ()):
        return "required"
    return code(json.dumps(field["default"])) if "default" in field else ""


def _meaning(field: Json) -> str:
    examples = ", ".join(code(json.dumps(example)) for example in field.get("examples", ()))
    return f"{field.get('description', '')}{f' Example: {examples}' if examples else ''}"


def _type(node: Json) -> str:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return _enumeration(name) or f"[{name}](#{name})"
    if "anyOf" in node:
        branches = (_type(branch) for branch in node["anyOf"] if branch.get("type") != "null")
        return " or ".join(dict.fromkeys(branches))
    if "enum" in node:
        return ", ".join(code(value) for value in node["enum"])
    if "const" in node:
        return code(node["const"])
    types = [node["type"]] if isinstance(node["type"], str) else node["type"]
    if types == ["array"]:
        return f"list of {_type(node['items'])}"
    if types == ["object"]:
        return _mapping(node)
    return " or ".join(name for name in types if name != "null") + _bounds(node)


def _mapping(node: Json) -> str:
    if "properties" in node:
        return code(f"{{{', '.join(f'{name}: …' for name in node['properties'])}}}")
    values = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    return f"mapping to {_type(values[0])}" if isinstance(values[0], dict) else "mapping"


def _bounds(node: Json) -> str:
    least, most = node.get("minimum"), node.get("maximum")
    if least is None:
        return ""
    return f", {least:,} or more" if most is None or most >= 10**6 else f", {least:,} to {most:,}"


def _enumeration(name: str) -> str:
    node = fleet_file_schema()["$defs"][name]
    return _type(node) if "enum" in node else ""
