"""What a request asks of the mock engine, and what vLLM 0.32 refuses, in its words. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class BadRequestError(Exception):
    """The request cannot be read; the message is the one that the engine would give."""

    def __init__(self, message: str, param: str | None = None, kind: str = "BadRequestError") -> None:
        self.param = param
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request wants, as far as the mock looks at it."""

    chat: bool
    model: str
    """Engine-side name; the base model's when the request names none."""
    stream: bool
    choices: int
    tokens: int
    """Completion tokens of each choice, the end-of-sequence token included."""
    finish: str
    prompt: str
    """Everything that the prefix cache would see."""
    prompts: tuple[int, ...]
    """Tokens of each prompt; a chat has one."""
    include_usage: bool
    continuous_usage: bool
    salt: str


def read(body: dict[str, Any], *, chat: bool, base: str, natural: int) -> Asked:
    """Raises BadRequestError for what vLLM refuses, in its words."""
    prompts = _chat_prompt(body) if chat else _completion_prompts(body)
    tokens, finish = _length(body, natural, default=None if chat else 16)
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
    return Asked(
        chat=chat,
        model=body.get("model") or base,
        stream=bool(body.get("stream")),
        choices=choices * len(prompts),
        tokens=tokens,
        finish=finish,
        prompt="\n".join(prompts),
        prompts=tuple(_count(prompt) for prompt in prompts),
        include_usage=include,
        continuous_usage=include and bool(options.get("continuous_usage_stats")),
        salt=str(salt or ""),
    )


def _length(body: dict[str, Any], natural: int, default: int | None) -> tuple[int, str]:
    wanted = body.get("max_completion_tokens")
    if wanted is None:
        wanted = body.get("max_tokens", default)
    if wanted is None:
        return natural, "stop"
    if wanted < 1:
        raise BadRequestError(
            f"max_tokens must be at least 1, got {wanted}. (parameter=max_tokens, value={wanted})",
            "max_tokens",
        )
    if wanted < natural or body.get("ignore_eos"):
        return wanted, "length"
    return natural, "stop"


def _count(prompt: str) -> int:
    return 1 + prompt.count(" ")


def _chat_prompt(body: dict[str, Any]) -> list[str]:
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
