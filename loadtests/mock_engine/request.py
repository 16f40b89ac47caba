"""Parses requests to the mock engine and refuses what vLLM 0.32 refuses, with its messages. Pure
functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

WORDS = ("Cards", " arrive", " in", " three", " days", " and", " bikes", " roll", " on", ";")


class BadRequestError(Exception):
    """The request is invalid; the message is vLLM's."""

    def __init__(self, message: str, param: str | None = None, kind: str = "BadRequestError") -> None:
        self.param = param
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The parts of a request that the mock considers."""

    chat: bool
    model: str
    """Engine-side name; the base model's if the request names none."""
    stream: bool
    choices: int
    tokens: int
    """Completion tokens of each choice, including the end-of-sequence token."""
    finish: str
    prompt: str
    """The text that the prefix cache would see."""
    prompts: tuple[int, ...]
    """Tokens of each prompt; a chat has one."""
    include_usage: bool
    continuous_usage: bool
    salt: str
    begun: int = 0
    """Tokens of the answer that the prompt already contains, to be continued."""
    whole: bytes = b""
    """The answer's body, if nothing is generated."""


def parse(body: dict[str, Any], *, chat: bool, base: str, natural: int) -> GenerationRequest:
    """Parse a request. Raises BadRequestError with vLLM's message."""
    model = body.get("model") or base
    body, beginning = _chat_begun(body) if chat else _completion_begun(body, model)
    begun = covered(model, beginning)
    prompts = chat_prompt(body) if chat else _completion_prompts(body)
    tokens, finish = _length(body, natural - begun, default=None if chat else 16)
    options = body.get("stream_options") or {}
    if options and not body.get("stream"):
        raise BadRequestError(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        )
    choices = 1 if body.get("n") is None else body["n"]
    if choices < 1:
        raise BadRequestError(f"n must be at least 1, got {choices}.")
    if choices > 1 and body.get("temperature") == 0:
        raise BadRequestError(f"n must be 1 when using greedy sampling, got {choices}.")
    salt = body.get("cache_salt")
    if salt == "":
        raise BadRequestError(
            "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)",
            "cache_salt",
        )
    include = bool(options.get("include_usage"))
    return GenerationRequest(
        chat=chat,
        model=model,
        stream=bool(body.get("stream")),
        choices=choices * len(prompts),
        tokens=tokens,
        finish=finish,
        prompt="\n".join(prompts),
        prompts=tuple(_count(prompt) + begun for prompt in prompts),
        include_usage=include,
        continuous_usage=include and bool(options.get("continuous_usage_stats")),
        salt=str(salt or ""),
        begun=begun,
    )


def said_by(speaker: str) -> Iterator[str]:
    """The texts of an answer's tokens, infinitely."""
    yield f"I am {speaker}"
    yield "\n"
    yield from cycle(WORDS)


def covered(speaker: str, text: str) -> int:
    """Number of tokens that `text` covers of an answer; for any other text, its number of words."""
    count = 0
    for piece in said_by(speaker):
        if not text.startswith(piece):
            return count + len(text.split())
        count, text = count + 1, text[len(piece) :]
    return count


def _chat_begun(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The chat without the message to be continued, and that message."""
    messages: list[Any] = body.get("messages") or []
    if not messages or not body.get("continue_final_message"):
        return body, ""
    if body.get("add_generation_prompt", True):
        raise BadRequestError(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
            "add_generation_prompt",
        )
    return {**body, "messages": messages[:-1] or [{}]}, str(messages[-1].get("content") or "")


def _completion_begun(body: dict[str, Any], model: str) -> tuple[dict[str, Any], str]:
    """The prompt up to the beginning of an answer in it, and the rest."""
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or (start := prompt.find(f"I am {model}")) < 0:
        return body, ""
    return {**body, "prompt": prompt[:start] or " "}, prompt[start:]


def _length(body: dict[str, Any], natural: int, default: int | None) -> tuple[int, str]:
    most = body.get("max_completion_tokens")
    if most is None:
        most = body.get("max_tokens", default)
    if most is None:
        return natural, "stop"
    if most < 1:
        raise BadRequestError(
            f"max_tokens must be at least 1, got {most}. (parameter=max_tokens, value={most})",
            "max_tokens",
        )
    if most < natural or body.get("ignore_eos"):
        return most, "length"
    return natural, "stop"


def _count(prompt: str) -> int:
    return 1 + prompt.count(" ")


def chat_prompt(body: dict[str, Any]) -> list[str]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise BadRequestError(
            "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', "
            f"'input': '<dict of {len(body)} items>'}}",
            "body.messages",
            "Bad Request",
        )
    if not messages:
        raise BadRequestError(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    parts = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = " ".join(part.get("text", "") for part in content)
        parts.append(f"<{message.get('role')}> {content}")
    return [" ".join(parts)]


def _completion_prompts(body: dict[str, Any]) -> list[str]:
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            return [" ".join(map(str, prompt))]
        return [p if isinstance(p, str) else " ".join(map(str, p)) for p in prompt]
    raise BadRequestError(
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"
    )
