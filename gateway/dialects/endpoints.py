"""Everything that the data plane serves from engines, by path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.dataplane.dialect import OPENAI, Dialect
from gateway.dataplane.request import CHAT, COMPLETIONS, Endpoint
from gateway.dialects.engine_routes import DETOKENIZE, EMBEDDINGS, RERANK, SCORE, TOKENIZE
from gateway.dialects.messages.endpoint import COUNT_TOKENS, MESSAGES
from gateway.dialects.responses.endpoint import INPUT_TOKENS, RESPONSES

ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {
        endpoint.path: endpoint
        for endpoint in (
            CHAT,
            COMPLETIONS,
            EMBEDDINGS,
            RERANK,
            SCORE,
            MESSAGES,
            COUNT_TOKENS,
            RESPONSES,
            INPUT_TOKENS,
            TOKENIZE,
            DETOKENIZE,
        )
    }
    | {
        "/v2/rerank": RERANK,  # Cohere's client of today
        "/tokenize": TOKENIZE,  # vLLM's own paths
        "/detokenize": DETOKENIZE,
    }
)


def dialect_of(path: str) -> Dialect:
    """Which API's errors a client of this path understands."""
    endpoint = ENDPOINTS.get(path.rstrip("/"))
    if endpoint is not None:
        return endpoint.dialect
    return MESSAGES.dialect if path.startswith(MESSAGES.path + "/") else OPENAI
