"""The OpenAPI document describes what the data plane serves."""

from __future__ import annotations

from collections import Counter

from gateway.api.data_plane_openapi import TAG, operations
from gateway.batches.routes import batches, files
from gateway.dialects.endpoints import ENDPOINTS
from tests.support.routes import described


def test_every_endpoint_is_in_the_document_once() -> None:
    document = described()
    for path, endpoint in ENDPOINTS.items():
        operation = document["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["required"]) <= schema["properties"].keys(), path
        assert "model" in schema["required"]
        assert endpoint.named(endpoint.required) in schema["required"]
    for root in (files.PATH, batches.PATH, "/v1/models"):
        assert "get" in document["paths"][root]
    names = Counter(
        operation["operationId"] for methods in document["paths"].values() for operation in methods.values()
    )
    assert not [name for name, count in names.items() if count > 1]
    assert document["components"]["securitySchemes"]["key"]


def test_refused_fields_are_not_offered() -> None:
    found = {path: operation for method, path, operation in operations() if method == "post"}
    chat = found["/v1/chat/completions"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert "functions" not in chat
    assert chat["max_tokens"]["description"].startswith("Bounded: ")
    messages = found["/v1/messages"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {"system", "max_tokens", "stop_sequences"} <= messages.keys()
    assert "text/event-stream" in found["/v1/messages"]["responses"]["200"]["content"]
    assert "text/event-stream" not in found["/v1/messages/count_tokens"]["responses"]["200"]["content"]
    assert all(TAG in operation["tags"] for operation in found.values())
