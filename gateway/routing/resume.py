"""Resuming a stream on another engine after its engine fails: when that is sound, and with which request.

The second engine gets the request together with the text that the client has received: as an assistant
message to be continued (`continue_final_message`), or appended to the prompt. Its continuation is exactly the
first engine's at temperature 0, and has the same distribution otherwise, provided that:

1. **No state that determines the next token is lost with the first engine.** A token depends on the preceding
   tokens, which are sent along, and on options of the request. The tables below list the options that depend
   on nothing else; a request with any other option is not resumed. Penalties count only the answer's tokens,
   grammars and tool-call parsers have state, and a seed restarts its random numbers.
2. **The text maps to the same tokens.** A chat template may change a message (trim it, remove reasoning, turn
   text into special tokens), and a tokenizer may merge tokens that were generated separately. So the second
   engine must report exactly as many prompt tokens as the first had read and the client has received. White
   space at either end of a chat's text is not resumed: a template may trim it without changing the count.

Otherwise, the client gets an error event.

Pure, except for `ResumeBuffer` and `ResumableStream`, which are mutable and belong to one event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

MOST_BYTES = 1024 * 1024
"""Maximum size of one request and its answer so far; larger ones are not kept."""
MOST_BYTES_IN_ALL = 64 * 1024 * 1024
"""Maximum size of all that a worker keeps. Further streams are served, but cannot be resumed."""
MOST_RESUMES = 3
"""Maximum resumes of one stream, so that engines stopped one after another do not read it again and again."""
_STEP = 4096
DEFAULT_MAX_TOKENS = 16
"""vLLM's default for completions, from which the delivered tokens must be subtracted."""

HEAD = ("id", "object", "created")
"""Members that all events of a response share, besides the model."""
_HARMLESS = frozenset(
    {
        "messages", "prompt", "model", "stream", "max_tokens", "max_completion_tokens", "min_tokens",
        "temperature", "seed", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias",
        "allowed_token_ids", "stop_token_ids", "ignore_eos", "chat_template_kwargs", "documents",
        "reasoning_effort", "add_special_tokens", "parallel_tool_calls", "spaces_between_special_tokens",
        "include_stop_str_in_output",
    }
)  # fmt: skip  # one name a line says no more
"""Options whose effect does not depend on whether preceding tokens were read or generated. (The repetition
penalty covers the prompt, too; token limits are reduced by what was delivered.)"""


def _single(stop: Any) -> bool:
    """Stop strings of one character only: longer ones may span the seam, and vLLM holds text back for
    them."""
    return all(len(text) <= 1 for text in ([stop] if type(stop) is str else stop))


_IF: Mapping[str, Callable[[Any], bool]] = {
    "n": lambda v: v == 1,
    "presence_penalty": lambda v: v == 0,
    "frequency_penalty": lambda v: v == 0,
    "logprobs": lambda v: v is False,
    "stop": _single,
    "tools": lambda v: not v,
    "tool_choice": lambda v: v in ("none", "auto"),
    "bad_words": lambda v: not v,
    "response_format": lambda v: v == {"type": "text"},
    "include_reasoning": lambda v: v is True,
    "skip_special_tokens": lambda v: v is True,
    "return_token_ids": lambda v: v is False,
    "return_prompt_text": lambda v: v is False,
    "continue_final_message": lambda v: type(v) is bool,
    "add_generation_prompt": lambda v: type(v) is bool,
}
"""Options that are harmless with certain values."""


def obstacle(body: Mapping[str, Any]) -> str:
    """The field that prevents resuming the response to `body`; empty: none."""
    for name, value in body.items():
        if name not in _HARMLESS and not (name in _IF and _IF[name](value)):
            return name
    if "seed" in body and body.get("temperature") != 0:
        return "seed"
    if "prompt" in body:
        return "" if type(body["prompt"]) is str else "prompt"
    if body.get("continue_final_message"):
        return "" if type(body["messages"][-1].get("content")) is str else "messages"
    return "" if body.get("add_generation_prompt", True) else "add_generation_prompt"


def continuation(payload: bytes, text: str, tokens: int) -> bytes:
    """The request that continues after `text`, which has `tokens` tokens. `payload` must have no obstacle."""
    body = orjson.loads(payload)
    if "messages" in body:
        messages = body["messages"]
        if body.get("continue_final_message"):
            messages[-1]["content"] += text
        else:
            messages.append({"role": "assistant", "content": text})
        body["continue_final_message"], body["add_generation_prompt"] = True, False
    else:
        body["prompt"] += text
        body.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    for name, least in (("max_tokens", 1), ("max_completion_tokens", 1), ("min_tokens", 0)):
        if name in body:
            body[name] = max(least, body[name] - tokens)
    return orjson.dumps(body)


class ResumeBuffer:
    """Limits the memory of one worker for requests and answers of streams that may be resumed."""

    def __init__(self, size: int = MOST_BYTES_IN_ALL) -> None:
        self._left = size

    def __repr__(self) -> str:
        return f"<ResumeBuffer of {self._left}>"

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def give(self, size: int) -> None:
        self._left += size


@dataclass(slots=True)
class ResumableStream:
    """One streamed response as the client has received it, across all engines that took part.

    `add` records an engine's output. If the engine fails after all of that was delivered, `keep` makes it
    permanent; if nothing was delivered, `begin` discards it. Call `end` on every path."""

    buffer: ResumeBuffer
    obstacle: str
    """Why the stream cannot be resumed; empty: it can."""
    chat: bool = False
    """A chat template renders its text."""
    opens: bool = False
    """The text starts a message."""
    payload: bytes = b""
    """The request to the first engine."""
    head: dict[str, Any] = field(default_factory=dict)
    """Members that all events share: id, creation time."""
    prompt: int = 0
    """Prompt tokens of the first engine."""
    before: int = 0
    """Tokens delivered by engines that have failed since."""
    tokens: int = 0
    """All tokens whose text has been added, including those."""
    resumes: int = 0
    _text: bytearray = field(default_factory=bytearray)
    _kept: int = 0
    """Bytes of text from earlier engines."""
    _taken: int = 0
    """Bytes taken from the buffer."""
    spoilt: str = ""
    """Output of this engine that cannot be resumed."""

    def start(self, payload: bytes) -> None:
        """The first engine starts to answer `payload`."""
        if not self.obstacle:
            self.payload = payload
            self._grow(len(payload))

    def begin(self) -> None:
        """A new attempt starts: discard what was added but not kept."""
        del self._text[self._kept :]
        self.tokens, self.spoilt = self.before, ""
        if not self.before:
            self.head = {}

    def add(self, chunk: Mapping[str, Any], completion: int) -> None:
        """Add one event, after which this engine has counted `completion` tokens. Runs for every token."""
        if not self.head:
            self.head = {name: chunk[name] for name in HEAD if name in chunk}
        choice = chunk["choices"][0]
        delta = choice.get("delta")
        if delta is None:
            piece = choice["text"]
        elif len(delta) == 1 and "content" in delta:
            piece = delta["content"]
        else:
            piece = self._content_of(delta)
        if type(piece) is str:
            self.add_text(piece.encode(), completion)
        elif piece:
            self.spoilt = "content"

    def add_text(self, piece: bytes, completion: int) -> None:
        """Add the text of an event that has nothing else to add."""
        if piece and not self.obstacle:
            text = self._text
            text += piece
            self.tokens = self.before + completion
            if len(text) > self._taken - len(self.payload):
                self._grow(_STEP)

    def _content_of(self, delta: Mapping[str, Any]) -> Any:
        for name, value in delta.items():
            if value and name not in ("role", "content"):
                self.spoilt = name  # reasoning or tool calls: not text that can be continued
        return delta.get("content")

    def _grow(self, size: int) -> None:
        if len(self.payload) + len(self._text) > MOST_BYTES or not self.buffer.take(size):
            self.end()
            self.obstacle = "size"
        else:
            self._taken += size

    def keep(self, prompt: int) -> str:
        """The engine failed, and everything added was delivered. Returns why the stream cannot be resumed;
        empty: it can."""
        if not self.before:
            self.prompt = prompt
        self._kept, self.before = len(self._text), self.tokens
        self.obstacle = self.obstacle or self.spoilt or self._hindrance(prompt)
        return self.obstacle

    def _hindrance(self, prompt: int) -> str:
        text = self.text
        if not (prompt and self.tokens and text and self.head):
            return "counts"
        if (self.chat and text[-1].isspace()) or (self.opens and text[0].isspace()):
            return "white space"
        return "resumed too often" if self.resumes >= MOST_RESUMES else ""

    @property
    def text(self) -> str:
        return self._text.decode()

    @property
    def read(self) -> int:
        """Prompt tokens that a resuming engine must report."""
        return self.prompt + self.before

    def resume(self) -> bytes:
        """The request to the resuming engine."""
        self.resumes += 1
        return continuation(self.payload, self.text, self.before)

    def usage(self, usage: Mapping[str, Any], completion: int) -> dict[str, Any]:
        """One engine's counts, converted to those of the whole stream."""
        done = self.before + completion
        summed = {"prompt_tokens": self.prompt, "total_tokens": self.prompt + done, "completion_tokens": done}
        merged = {**usage, **summed}
        if merged.get("prompt_tokens_details"):
            merged["prompt_tokens_details"] = None  # they describe the resuming engine's prompt
        return merged

    def end(self) -> None:
        """Free the memory. Idempotent."""
        self.buffer.give(self._taken)
        self._taken, self._kept, self.payload = 0, 0, b""
        self._text.clear()
