"""An engine dies in the middle of a stream, and another goes on: when that is sound, and with what request.

The other engine is sent the request with the text that the client has: as an assistant's message to be
continued (`continue_final_message`), or at the end of the prompt. What it adds is what the first would have
said, exactly at temperature 0 and by the same probabilities above, if two things hold:

1. **Nothing that decides on the next token is lost with the first engine.** A token depends on the tokens
   before it, which are sent along, and on what a request may ask for besides. So the rule lists the fields
   that depend on nothing else, and a request with any other field is not resumed: penalties count the
   answer's tokens only, grammars and parsers of tool calls have a state, a seed begins its numbers anew.
2. **The text becomes the same tokens again.** A chat template may change a message (trim it, cut out thoughts
   or turn a text into a special token), and a tokenizer may join what was generated apart. So the engine must
   have read exactly as many tokens as the first had read and the client has received: prompt + completion.
   What that count cannot show is left alone: white space at the ends of a chat's text, which a template may
   trim from a token without changing their number.

Where either fails, the client gets the error event that it got before.

Pure, but for `ResumeBuffer` and `ResumableAnswer`, which are mutable and belong to one event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

MOST_BYTES = 1024 * 1024
"""Of one request and its answer so far; of more than this nothing is kept."""
MOST_BYTES_IN_ALL = 64 * 1024 * 1024
"""Of all that a worker keeps. Streams that find no room are served as well, but not resumed."""
MOST_RESUMES = 3
"""Of one answer: engines that stop one after the other must not read it again and again."""
_STEP = 4096
DEFAULT_MAX_TOKENS = 16
"""vLLM's, of completions; the continuation's must be what is left of it."""

_HEAD = ("id", "object", "created")
"""What all events of an answer have in common, beside the model."""
_HARMLESS = frozenset(
    {
        "messages", "prompt", "model", "stream", "max_tokens", "max_completion_tokens", "min_tokens",
        "temperature", "seed", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias",
        "allowed_token_ids", "stop_token_ids", "ignore_eos", "chat_template_kwargs", "documents",
        "reasoning_effort", "add_special_tokens", "parallel_tool_calls", "spaces_between_special_tokens",
        "include_stop_str_in_output",
    }
)  # fmt: skip  # one name a line says no more
"""Each step is the same whether what came before was read or generated. (The repetition penalty looks at the
prompt, too; both counts of tokens are made smaller by what was delivered.)"""


def _single(stop: Any) -> bool:
    """Of more than one character, vLLM holds text back, and one could begin before the seam and end after."""
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
"""Harmless with some values."""


def obstacle(body: Mapping[str, Any]) -> str:
    """The field for which a stream that answers `body` cannot be resumed; empty: there is none."""
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
    """The request that goes on after `text`, which was `tokens` tokens. `payload` has no obstacle."""
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
    """What a worker may keep of requests and answers, so that streams can be resumed."""

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
class ResumableAnswer:
    """One streamed answer as the client has it, over all engines that took part.

    `add` follows what an engine says. It counts when the engine fails after some of it was delivered (`keep`,
    when all that was added has been), and is forgotten if nothing was (`begin`)."""

    room: ResumeBuffer
    obstacle: str
    """Why it cannot be resumed; empty: it can."""
    chat: bool = False
    """A template prints its text."""
    opens: bool = False
    """And as the beginning of a message."""
    payload: bytes = b""
    """What the first engine was sent."""
    head: dict[str, Any] = field(default_factory=dict)
    """What all events have in common: id, time."""
    prompt: int = 0
    """Tokens that the first engine read."""
    before: int = 0
    """Tokens of the answer that were delivered by engines that have failed since."""
    tokens: int = 0
    """Tokens whose text has been added, with those."""
    resumes: int = 0
    _text: bytearray = field(default_factory=bytearray)
    _kept: int = 0
    """Bytes of the text from before."""
    _taken: int = 0
    """Of the room."""
    spoilt: str = ""
    """What this engine has said that cannot be continued."""

    def start(self, payload: bytes) -> None:
        """The answer begins; `payload` is what it answers."""
        if not self.obstacle:
            self.payload = payload
            self._grow(len(payload))

    def begin(self) -> None:
        """Another attempt begins; what was added and not kept was never delivered."""
        del self._text[self._kept :]
        self.tokens, self.spoilt = self.before, ""
        if not self.before:
            self.head = {}

    def add(self, chunk: Mapping[str, Any], completion: int) -> None:
        """One event of one choice, and how many tokens this engine has then counted. For each token."""
        if not self.head:
            self.head = {name: chunk[name] for name in _HEAD if name in chunk}
        choice = chunk["choices"][0]
        said = choice.get("delta")
        if said is None:
            piece = choice["text"]
        elif len(said) == 1 and "content" in said:
            piece = said["content"]
        else:
            piece = self._said(said)
        if piece and not self.obstacle:
            text = self._text
            text += piece.encode()
            self.tokens = self.before + completion
            if len(text) > self._taken - len(self.payload):
                self._grow(_STEP)

    def _said(self, delta: Mapping[str, Any]) -> Any:
        for name, value in delta.items():
            if value and name not in ("role", "content"):
                self.spoilt = name  # thoughts, tool calls: they are no text to continue
        return delta.get("content")

    def _grow(self, size: int) -> None:
        if len(self.payload) + len(self._text) > MOST_BYTES or not self.room.take(size):
            self.end()
            self.obstacle = "size"
        else:
            self._taken += size

    def keep(self, prompt: int) -> str:
        """The engine failed, and all that was added has been delivered. Returns why it cannot be resumed;
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
        """Tokens of the prompt with which another engine goes on, if they are the same."""
        return self.prompt + self.before

    def resume(self) -> bytes:
        """The request that goes on."""
        self.resumes += 1
        return continuation(self.payload, self.text, self.before)

    def usage(self, usage: Mapping[str, Any], completion: int) -> dict[str, Any]:
        """Counts of one engine, as those of one answer."""
        done = self.before + completion
        summed = {"prompt_tokens": self.prompt, "total_tokens": self.prompt + done, "completion_tokens": done}
        told = {**usage, **summed}
        if told.get("prompt_tokens_details"):
            told["prompt_tokens_details"] = None  # of the second reading
        return told

    def end(self) -> None:
        """However the request ends, and any number of times."""
        self.room.give(self._taken)
        self._taken, self._kept, self.payload = 0, 0, b""
        self._text.clear()
