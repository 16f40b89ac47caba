"""The JSON Schema of a fleet file, for editors and other programs: `florin fleet-file schema`.

It describes the file as `florin apply` reads it, which is wider than what the API takes: keys by reference,
and prices as numbers. What only the whole file can show, `florin fleet-file check` finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gateway.declarative.operations.document import schema
from gateway.declarative.operations.sections import DECIMALS

Json = dict[str, Any]

OBJECTS: Final = {
    "BaseSpec": ("base-model", "A base model, by its name as engines serve it."),
    "EngineSpec": ("engine", "An engine that was not started by `florin engine run`, by its name."),
    "TenantTerms": ("tenant", "A customer, by its name: 1 to 63 of `a-z`, `0-9`, `-` and `_`."),
    "LimitTerms": ("limits", "Limits of a tenant or of one key; both apply."),
    "BudgetTerms": ("budget", "A budget of a tenant or of one key; both apply."),
    "QuotaTerms": ("quotas", "What a tenant may register itself, with a key of role tenant-admin."),
    "PolicyTerms": ("policy", "Where a tenant's requests differ from the installation's settings."),
    "KeySpec": ("key", "An API key, by its id: 1 to 63 of `A-Z`, `a-z`, `0-9` and `-`."),
    "ScopeTerms": ("scopes", "What a tenant's key may do."),
    "PinsSpec": ("pins", "What the host of an engine's key cannot change."),
    "AdapterSpec": ("adapter", "An adapter, by its full name, `TENANT/NAME`."),
    "VersionSpec": ("version", "One immutable set of weights of an adapter."),
    "CanarySpec": ("canary", "A version that gets part of an adapter's calls."),
    "GuardSpec": ("guard", "What watches a canary; see docs/canaries.md."),
    "RemovedSpec": ("removed-adapter", "An adapter that is no longer there, by its full name."),
    "NewPrice": ("price", "What a GPU-hour costs; see docs/prices.md."),
    "NewRateCard": ("rate-card", "One version of a rate card; see docs/rate-cards.md."),
    "NewCardLine": ("rate-card-line", "Prices for some of the usage, by what it is for."),
    "NewTier": ("tier", "Another price from a monthly quantity on."),
    "NewAssignment": ("rate-card-assignment", "Whose card it is, and from which month."),
    "Priority": ("priority", "A higher class is served first when requests wait for engines."),
}
"""pydantic's name → the object's name, and what it is; in the order of the reference page."""
NAMES: Final = {name: shown for name, (shown, _) in OBJECTS.items()}

_SECRET: Final = {
    "description": "The key by reference, `{env: NAME}` or `{file: PATH}`, which `florin apply` reads and "
    "hashes; or its SHA-256, as `florin export` writes it. Never the key itself.",
    "anyOf": [
        {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
        *(
            {
                "type": "object",
                "properties": {name: {"type": "string"}},
                "required": [name],
                "additionalProperties": False,
            }
            for name in ("env", "file")
        ),
    ],
}
_BOUNDS: Final = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
"""pydantic's words for the bounds of decimals → JSON Schema's."""


def fleet_file_schema() -> Json:
    root = _tidy(schema())
    objects: Json = {NAMES[name]: definition for name, definition in root.pop("$defs").items()}
    objects["key"]["properties"]["secret"] = _SECRET
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Florin fleet file",
        **root,
        "$defs": {
            name: {**objects[name], "title": name, "description": text} for name, text in OBJECTS.values()
        },
    }


def _tidy(node: Any) -> Any:
    """Without what pydantic adds for nobody: titles that repeat names, defaults that are no value."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    return dict(_tidy_items(node))


def _tidy_items(node: Json) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if name == "properties":
            yield name, {field: _field(field, _tidy(inner)) for field, inner in value.items()}
        elif name == "$ref":
            yield name, f"#/$defs/{NAMES[value.rpartition('/')[2]]}"
        elif name == "patternProperties":
            yield name, _tidy(value)
            yield "additionalProperties", False
        elif name not in {"title", "decimal_places"} and (name, value) != ("default", None):
            yield _BOUNDS.get(name, name), _tidy(value)


def _field(name: str, node: Json) -> Json:
    if name not in DECIMALS:
        return node
    branches = [branch for branch in node.pop("anyOf", [node]) if branch.get("type") != "string"]
    described: Json = {key: node[key] for key in ("description", "examples", "default") if key in node}
    nullable = any(branch.get("type") == "null" for branch in branches)
    return {**described, "type": ["number", "string", *(["null"] if nullable else [])]}
