"""The page of the HTTP API: the data plane's routes, and every operation of the OpenAPI description with the
roles that may call it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from gateway.api.access_rules import access_rules, rule_for
from gateway.api.data_plane_openapi import TAG
from gateway.app import Florin
from gateway.config import Settings
from gateway.dialects.endpoints import ENDPOINTS
from tests.tools.docs.markdown import cell, code, document, table

Json = dict[str, Any]

_INTRO = """
All routes except the health checks require `Authorization: Bearer KEY`; each operation lists the roles that
may call it. Requests and responses are JSON in UTF-8 unless noted otherwise. [Errors](errors.md) lists the
error codes. A slash at the end of a path does not matter, and `HEAD` is answered where `GET` is.

## OpenAPI

[openapi.json](openapi.json) describes these routes, with the type of every answer, for programs that generate
clients. With `FLORIN_API_DOCS=true`, a gateway serves that of its own release at `/openapi.json`, and a page
to try it at `/docs`. For example, a Python client with [openapi-python-client](
https://github.com/openapi-generators/openapi-python-client):

```
uvx openapi-python-client generate --path docs/reference/openapi.json
```

Ignore fields that a client does not know: a newer gateway may answer more. A route that answers
`application/x-ndjson`, an event stream or a file is better called without the generated client.
"""

_DATA_PLANE = """
## Data plane

OpenAI's routes, for keys of role `tenant`. No other route of an engine is reachable.
[Parameters](parameters.md) lists every field.
"""

_MODELS = (
    ("`GET /v1/models`", "The adapters and base models that the key may call."),
    ("`GET /v1/models/{model}`", "One of these."),
    ("`POST /v1/files`", "A file, uploaded as `multipart/form-data` with `purpose=batch`."),
    ("`GET /v1/files`", "The tenant's files; `purpose`, `limit`, `after`, `order`."),
    ("`GET /v1/files/{id}`", "One of these."),
    ("`GET /v1/files/{id}/content`", "Its content, JSONL."),
    ("`DELETE /v1/files/{id}`", "Deletes it."),
    ("`POST /v1/batches`", "A batch: `input_file_id`, `endpoint`, `completion_window`, `metadata`."),
    ("`GET /v1/batches`", "The tenant's batches, newest first; `limit`, `after`."),
    ("`GET /v1/batches/{id}`", "One of these."),
    ("`POST /v1/batches/{id}/cancel`", "Cancels it."),
)

_OBJECTS = """
## Objects

The objects that the operations take and return.
"""

_LISTED: Final = re.compile(r"Listed_(\w+)_")
"""The name that FastAPI gives a list's schema."""
_HEADINGS: Final = {"admin": "Admin", "finance": "Finance", "": "Health and metrics"}


def page() -> str:
    description = openapi()
    sections = []
    for area, heading in _HEADINGS.items():
        sections.append(f"## {heading}")
        sections += [_operation(*route) for route in operations(description) if _area(route[1]) == area]
    answers = [
        (code(f"POST {path}"), "An answer, or an event stream." if endpoint.inputs is None else "An answer.")
        for path, endpoint in ENDPOINTS.items()
    ]
    return document(
        "HTTP API",
        _INTRO,
        _DATA_PLANE,
        table(("route", "returns"), [*answers, *_MODELS]),
        *sections,
        _OBJECTS,
        *(_object(name, description["components"]["schemas"][name]) for name in objects(description)),
    )


def openapi_file() -> str:
    return json.dumps(openapi(), indent=1) + "\n"


@cache
def openapi() -> Json:
    """With default settings, whatever the environment."""
    return Florin(Settings.model_construct(api_docs=True)).api.openapi()


def operations(description: Json) -> Iterator[tuple[str, str, Json]]:
    """Method, path, operation; by path. Without the data plane's, which have tables of their own."""
    for path, methods in sorted(description["paths"].items()):
        for method, operation in methods.items():
            if TAG not in operation.get("tags", ()):
                yield method.upper(), path, operation


def objects(description: Json) -> list[str]:
    """Names of the schemas that the page describes: all but FastAPI's own, whose errors Florin replaces."""
    own = {"HTTPValidationError", "ValidationError"}
    names = description["components"]["schemas"].keys() - own
    return sorted(name for name in names if not _LISTED.fullmatch(name))


def roles(method: str, path: str) -> list[str]:
    """The roles that may call it; empty: no key needed."""
    allowed = rule_for(access_rules(Settings.model_construct()), path, method).roles
    return [] if allowed is None else sorted(role.value for role in allowed)


def _area(path: str) -> str:
    first = path.split("/")[1]
    return first if first in _HEADINGS else ""


def _operation(method: str, path: str, operation: Json) -> str:
    allowed = roles(method, path)
    parts = [f"### {method} {path}"]
    words = operation["summary"]
    if operation.get("description"):
        words = operation["description"]
    parts.append(words.strip())
    who = ", ".join(map(code, allowed)) or "no key needed"
    parts.append(f"*Roles:* {who}. *Answers:* {', '.join(_answers(operation))}.")
    parameters = operation.get("parameters", ())
    if any(p["in"] != "path" or "description" in p for p in parameters):  # else the path says it all
        rows = ((f"{code(p['name'])} ({p['in']})", *_described(p["schema"], p)) for p in parameters)
        parts.append(table(("parameter", "type", "default", "meaning"), rows))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"*Body:* {code(kind)}, {_type(content['schema'])}.")
    return "\n\n".join(parts)


def _answers(operation: Json) -> Iterator[str]:
    for status, answer in operation["responses"].items():
        if status == "422":
            continue  # FastAPI's own, which Florin answers as 400
        shape = [
            _type(c["schema"]) for c in answer.get("content", {}).values() if "$ref" in c.get("schema", {})
        ]
        yield " ".join((status, *shape))


def _object(name: str, schema: Json) -> str:
    parts = [f"### {name}"]
    if schema.get("description"):
        parts.append(schema["description"].strip())
    if "enum" in schema:
        parts.append(f"One of {', '.join(map(code, schema['enum']))}.")
    required = schema.get("required", ())
    rows = (
        (code(field), *_described(field_schema, {"required": field in required}))
        for field, field_schema in schema.get("properties", {}).items()
    )
    if schema.get("properties"):
        parts.append(table(("field", "type", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _described(schema: Json, about: Json) -> tuple[str, str, str]:
    """Type, default and meaning."""
    if about.get("required"):
        default = "required"
    else:
        default = "" if schema.get("default") in (None, "") else code(_json(schema["default"]))
    meaning = schema.get("description") or about.get("description") or ""
    if meaning and not meaning.endswith((".", ":")):
        meaning += "."
    return _type(schema), default, f"{meaning} {_example(schema)}".strip()


def _example(schema: Json) -> str:
    return f"For example {code(_json(schema['examples'][0]))}." if schema.get("examples") else ""


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if listed := _LISTED.fullmatch(name):
            return f"`data`: list of [{listed[1]}](#{listed[1].lower()})"
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(s) for s in schema["anyOf"] if s.get("type") != "null")
    if "enum" in schema:
        return ", ".join(code(_json(value)) for value in schema["enum"])
    if "const" in schema:
        return code(_json(schema["const"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    if schema.get("type") == "object":
        named = next(iter(schema.get("patternProperties", {}).values()), None)
        values = schema.get("additionalProperties") or named
        return f"object of {_type(values)}" if isinstance(values, dict) else "object"
    return cell(schema.get("type", "any"))


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
