"""Everything that the data plane serves from engines, by path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.dataplane.request import CHAT, COMPLETIONS, Endpoint
from gateway.dialects.engine_routes import DETOKENIZE, EMBEDDINGS, RERANK, SCORE, TOKENIZE

ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {
        endpoint.path: endpoint
        for endpoint in (
            CHAT,
            COMPLETIONS,
            EMBEDDINGS,
            RERANK,
            SCORE,
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
