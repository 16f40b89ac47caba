"""The engines' routes that generate nothing."""

from __future__ import annotations

from gateway.dataplane.request import AnswerKind, Endpoint
from gateway.fields import pooling, tokenization

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
EMBEDDINGS = Endpoint(
    "/v1/embeddings",
    "input",
    pooling.INPUT_MUST,
    pooling.EMBEDDINGS,
    answer=AnswerKind.VECTORS,
    inputs=pooling.embedded,
    task="embed",
)
RERANK = Endpoint(
    "/v1/rerank",
    "documents",
    pooling.TEXTS_MUST,
    pooling.RERANK,
    answer=AnswerKind.RANKING,
    inputs=pooling.ranked,
    task="score",
)
SCORE = Endpoint(
    "/v1/score",
    "queries",
    pooling.TEXTS_MUST,
    pooling.SCORE,
    answer=AnswerKind.SCORES,
    inputs=pooling.scored,
    task="score",
)
