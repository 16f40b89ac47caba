"""The messages of a chat, and the parts of their content.

vLLM interprets a part by its `type`. Without a `type`, or with a `uuid`, it takes the first key that it
finds, in an order of its own. So Florin rebuilds each part from its type and the one value that belongs to
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.fields.checks import a_list, text
from gateway.fields.grammars import TOOLS
from gateway.fields.media import MAX_MEDIA, TOO_MANY, media_url
from gateway.fields.rule import FieldReading, Rule, WrongError, bounded, dropped, passed, read, refused

MAX_ROLE = 64
MUST = "be a non-empty list of messages, each an object with a `role`"
_TEXT = text()
_FORMAT = re.compile(r"[a-z0-9]{1,16}", re.IGNORECASE | re.ASCII)

_EMBEDDINGS = (
    "embeddings are tensors that the engine would load and mix into the batch; send the image, audio or text "
    "itself"
)
_UUID = (
    "it names an entry of the engine's media cache, which all tenants share: a client could ask about "
    "another tenant's image"
)


# -- parts of a message's content


def _url_object(value: Any, reading: FieldReading) -> Any:
    """Accepts a URL, or OpenAI's object around one."""
    if type(value) is not dict:
        return {"url": media_url(value, reading)}
    sent = {"url": media_url(value.get("url"), reading)}
    if type(value.get("detail")) is str and len(value["detail"]) <= 16:
        sent["detail"] = value["detail"]
    return sent


def _audio(value: Any, reading: FieldReading) -> Any:
    data, kind = (value.get("data"), value.get("format")) if type(value) is dict else (None, None)
    if type(data) is not str or type(kind) is not str or _FORMAT.fullmatch(kind) is None:
        raise WrongError("be an object with base64 `data` and a `format` such as `wav`")
    reading.media += 1
    if reading.media > MAX_MEDIA:
        raise WrongError(TOO_MANY)
    return {"data": data, "format": kind}


_URL_WHY = "`data:` URLs, and URLs of hosts that the operator has allowed, which the engine fetches"
PARTS: dict[str, tuple[str, Rule]] = {
    "text": ("text", passed(_TEXT, "text")),
    "input_text": ("text", passed(_TEXT, "text")),
    "output_text": ("text", passed(_TEXT, "text")),
    "refusal": ("refusal", passed(_TEXT, "text")),
    "thinking": ("thinking", passed(_TEXT, "text")),
    "tool_reference": ("name", passed(_TEXT, "a tool's name")),
    "image_url": ("image_url", bounded(_url_object, _URL_WHY)),
    "input_image": ("image_url", bounded(_url_object, _URL_WHY + "; sent as `image_url`")),
    "audio_url": ("audio_url", bounded(_url_object, _URL_WHY)),
    "video_url": ("video_url", bounded(_url_object, _URL_WHY)),
    "input_audio": ("input_audio", bounded(_audio, "audio in base64")),
    "image_embeds": ("image_embeds", refused(_EMBEDDINGS)),
    "audio_embeds": ("audio_embeds", refused(_EMBEDDINGS)),
    "video_embeds": ("video_embeds", refused(_EMBEDDINGS)),
    "prompt_embeds": ("prompt_embeds", refused(_EMBEDDINGS)),
    "image_pil": ("image_pil", refused("it is a Python object, which JSON cannot represent")),
    "file": ("file", refused("vLLM does not read files; send their text, or their pages as images")),
}
"""By type: the field that holds its value, and the rule for it. Without a `type`, that field tells it."""

DROPPED_OF_PARTS: Mapping[str, Rule] = {
    "uuid": dropped(_UUID),
    "detail": dropped("vLLM has only one level of detail"),
    "closed": dropped("vLLM ignores it"),
    "data": dropped("it belongs to `prompt_embeds`"),
    "prompt_cache_breakpoint": dropped("a hint for OpenAI's service, without effect here"),
    "type": passed(_TEXT, "says which value the part holds"),
}
"""Other fields of vLLM's parts."""


def _kind(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    if kind is None:
        keys = [key for key in _UNTYPED if key in part]
        kind = _UNTYPED[keys[0]] if len(keys) == 1 else None
    if type(kind) is not str or kind not in PARTS:
        raise WrongError(f"have a `type` of {', '.join(_SENT)}")
    return kind


def _part(value: Any, reading: FieldReading) -> Any:
    if type(value) is str:
        return value
    if type(value) is not dict:
        raise WrongError("be a string or an object with a `type`")
    kind = _kind(value)
    key, rule = PARTS[kind]
    for name in value:
        if name not in (key, "type") and name not in DROPPED_OF_PARTS:
            reading.drop(name)
    if rule.check is None:
        raise WrongError(rule.why, path=key, code="unsupported_parameter")
    try:
        return {"type": _RENAMED.get(kind, kind), key: rule.check(value.get(key), reading)}
    except WrongError as error:
        raise error.under(key) from None


_UNTYPED = {key: kind for kind, (key, _) in reversed(PARTS.items())}
_RENAMED = {"input_image": "image_url"}
"""vLLM treats both alike, but has more requirements for the first."""
_SENT = tuple(f"`{kind}`" for kind, (_, rule) in PARTS.items() if rule.check is not None)
_PARTS = a_list(_part, 4096, "parts")


def _content(value: Any, reading: FieldReading) -> Any:
    if type(value) is str:
        return value
    if type(value) is not list:
        raise WrongError("be a string or a list of parts")
    return _PARTS(value, reading)


# -- messages

_HARMONY = "it belongs to the Harmony message format, which vLLM's chat endpoint does not render"


def _calls(value: Any, _: FieldReading) -> Any:
    if type(value) is not list or not all(type(call) is dict for call in value):
        raise WrongError("be a list of objects")
    for i, call in enumerate(value):
        function = call.get("function")
        if type(function) is dict and type(function.get("arguments", "")) is not str:
            raise WrongError("be a string: the JSON that the model wrote", path=f"[{i}].function.arguments")
    return value


MESSAGE: dict[str, Rule] = {
    "role": bounded(text(MAX_ROLE), "rendered by the template"),
    "content": bounded(_content, "text, or parts: see below"),
    "name": passed(_TEXT, "templates may render it"),
    "tool_calls": passed(_calls, "rendered by the template; limited only by the size of the body"),
    "tool_call_id": passed(_TEXT, "templates may render it"),
    "reasoning": passed(_TEXT, "earlier reasoning, for templates that render it"),
    "reasoning_content": passed(_TEXT, "vLLM's older name for `reasoning`"),
    "refusal": passed(_TEXT, "an earlier refusal"),
    "tools": bounded(TOOLS, "tools in a developer message; same bounds as `tools`"),
    "task": bounded(text(64), "a marker that one model's template uses"),
    "function_call": dropped("vLLM's templates do not render it; use `tool_calls`"),
    "audio": dropped("it refers to earlier audio by OpenAI's id, which vLLM does not know"),
    "author": dropped(_HARMONY),
    "channel": dropped(_HARMONY),
    "recipient": dropped(_HARMONY),
    "content_type": dropped(_HARMONY),
}


def messages(value: Any, reading: FieldReading) -> Any:
    if type(value) is not list or not value:
        raise WrongError(MUST)
    sent = []
    for i, message in enumerate(value):
        if type(message) is not dict or type(message.get("role")) is not str:
            raise WrongError(MUST)
        if len(message) == 2 and type(message.get("content")) is str and len(message["role"]) <= MAX_ROLE:
            sent.append(message)  # the common case: role and text
            continue
        try:
            checked = read(MESSAGE, message, reading)
        except WrongError as error:
            raise error.under(f"[{i}]") from None
        if "content" in message and message["content"] is None:
            checked["content"] = (
                None  # an assistant's message with tool calls only; templates may test for it
            )
        sent.append(checked)
    return sent
