"""Everything that the data plane serves from engines, by path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.dataplane.request import CHAT, COMPLETIONS, Endpoint
from gateway.dialects.engine_routes import DETOKENIZE, TOKENIZE

ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {
        endpoint.path: endpoint
        for endpoint in (
            CHAT,
            COMPLETIONS,
            TOKENIZE,
            DETOKENIZE,
        )
    }
    | {
        "/tokenize": TOKENIZE,  # vLLM's own paths, which its users call
        "/detokenize": DETOKENIZE,
    }
)
