"""The engines' routes that generate nothing."""

from __future__ import annotations

from gateway.dataplane.request import AnswerKind, Endpoint
from gateway.fields import tokenization

TOKENIZE = Endpoint(
    "/v1/tokenize",
    "prompt",
    tokenization.TOKENIZED_MUST,
    tokenization.TOKENIZE,
    engine_path="/tokenize",
    answer=AnswerKind.TOKENS,
    inputs=tokenization.tokenized,
    task=None,
)
DETOKENIZE = Endpoint(
    "/v1/detokenize",
    "tokens",
    tokenization.TOKENS_MUST,
    tokenization.DETOKENIZE,
    engine_path="/detokenize",
    answer=AnswerKind.TEXT,
    inputs=tokenization.token_lists,
    task=None,
)
