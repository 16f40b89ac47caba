"""The data plane in the OpenAPI document. FastAPI does not serve it, so it is described from the tables that
requests are checked against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI

from gateway.dataplane.request import Endpoint
from gateway.dialects.endpoints import ENDPOINTS
from gateway.dialects.messages.endpoint import COUNT_TOKENS, MESSAGES
from gateway.dialects.responses.endpoint import INPUT_TOKENS, RESPONSES
from gateway.fields import anthropic_messages, responses
from gateway.fields.checks import That
from gateway.fields.rule import FieldAction, Table

Json = dict[str, Any]

TAG: Final = "models"
"""The tag of all operations here."""

_SUMMARIES: Final = {
    "/v1/chat/completions": "Answer a chat",
    "/v1/completions": "Continue a prompt",
    "/v1/responses": "Answer, in OpenAI's Responses API",
    "/v1/responses/input_tokens": "Count the tokens of an input, in OpenAI's Responses API",
    "/v1/messages": "Answer, in Anthropic's Messages API",
    "/v1/messages/count_tokens": "Count the tokens of a message, in Anthropic's Messages API",
    "/v1/embeddings": "Embed texts",
    "/v1/rerank": "Rank documents by a query",
    "/v1/score": "Score pairs of texts",
    "/v1/tokenize": "Split a prompt or a chat into tokens",
    "/v1/detokenize": "Join tokens into text",
}
_CLIENTS_FIELDS: Final[dict[str, Table]] = {
    RESPONSES.path: responses.RESPONSES,
    INPUT_TOKENS.path: responses.RESPONSES,
    MESSAGES.path: anthropic_messages.MESSAGES,
    COUNT_TOKENS.path: anthropic_messages.PROMPT,
}
"""The fields that clients send to endpoints whose requests are translated."""
_STORED: Final = (
    ("get", "/v1/models", "List the models that the key may call", ()),
    ("get", "/v1/models/{model}", "Show a model", ()),
    ("post", "/v1/files", "Upload a file for batches, as `multipart/form-data`", ()),
    ("get", "/v1/files", "List files", ("purpose", "limit", "after", "order")),
    ("get", "/v1/files/{file_id}", "Show a file", ()),
    ("delete", "/v1/files/{file_id}", "Delete a file", ()),
    ("get", "/v1/files/{file_id}/content", "Download a file", ()),
    ("post", "/v1/batches", "Create a batch", ()),
    ("get", "/v1/batches", "List batches", ("limit", "after")),
    ("get", "/v1/batches/{batch_id}", "Show a batch", ()),
    ("post", "/v1/batches/{batch_id}/cancel", "Cancel a batch", ()),
)
_ERROR: Final = {"description": "An error, in the words of the API: see the page Errors."}
_SECURITY: Final[list[Json]] = [{"key": []}]


def describe(api: FastAPI) -> None:
    """Add the data plane to the document that `api` serves."""
    framework = api.openapi

    def openapi() -> Json:
        document = framework()  # FastAPI makes it once
        if not document["paths"].keys() >= ENDPOINTS.keys():
            for method, path, operation in operations():
                document["paths"].setdefault(path, {})[method] = operation
            schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
            schemes["key"] = {"type": "http", "scheme": "bearer"}
        return document

    api.openapi = openapi  # type: ignore[method-assign]


def operations() -> Iterator[tuple[str, str, Json]]:
    """Method, path, operation."""
    for path, endpoint in ENDPOINTS.items():
        yield "post", path, _asking(path, endpoint)
    for method, path, summary, query in _STORED:
        variables = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        yield (
            method,
            path,
            _operation(method, path, summary)
            | {
                "parameters": [
                    *(
                        {"name": v, "in": "path", "required": True, "schema": {"type": "string"}}
                        for v in variables
                    ),
                    *({"name": q, "in": "query", "schema": {"type": "string"}} for q in query),
                ],
                "responses": {"200": {"description": "As in OpenAI's API."}, "default": _ERROR},
            },
        )


def _operation(method: str, path: str, summary: str) -> Json:
    name = path.strip("/").translate(str.maketrans("/{}", "_  ")).replace(" ", "")
    return {"tags": [TAG], "summary": summary, "operationId": f"{name}_{method}", "security": _SECURITY}


def _asking(path: str, endpoint: Endpoint) -> Json:
    """A request to an engine."""
    fields = _CLIENTS_FIELDS.get(endpoint.path, endpoint.fields)
    content: Json = {"application/json": {"schema": {"type": "object"}}}
    if "stream" in fields and not endpoint.free:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    properties = {
        name: {"description": _words(fields, name)}
        for name in fields
        if fields[name].action is not FieldAction.REFUSE
    }
    properties["model"] = {
        "type": "string",
        "description": "An adapter: `support`, `acme/support` or `support@v2`; or a base model.",
    }
    required = ["model", endpoint.named(endpoint.required)]
    schema = {"type": "object", "properties": properties, "required": required}
    return _operation("post", path, _SUMMARIES[endpoint.path]) | {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The answer.", "content": content}, "default": _ERROR},
    }


def _words(fields: Table, name: str) -> str:
    rule = fields[name]
    must = f" Must {rule.check.must}." if isinstance(rule.check, That) else ""
    return f"{rule.action.capitalize()}: {rule.why}.{must}"
