"""What emulated engines have in common: each turns a request into vLLM's, which the mock of vLLM answers."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import orjson

from loadtests.mock_engine import answers
from loadtests.mock_engine.answers import DONE
from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.engine import MockEngine
from loadtests.mock_engine.generation import STREAM_HEAD
from loadtests.mock_engine.probing import probed

Body = dict[str, Any]
CHAT = "/v1/chat/completions"
_SERVED = {CHAT, "/v1/completions"}


class RefusedError(Exception):
    """An answer instead of a generation."""

    def __init__(self, status: int, body: Body) -> None:
        super().__init__(str(body))
        self.status = status
        self.body = body


class OtherEngine(MockEngine):
    """Reads a request into vLLM's, and lets the mock of vLLM go on."""

    renamed: ClassVar[dict[str, str]] = {}
    """vLLM's metrics → this engine's. The rest is left out."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.received: deque[Body] = deque(maxlen=1000)
        self._routes = {key: run for key, run in self._routes.items() if key[1].startswith("/_mock/")}
        self._routes |= {("GET", "/health"): lambda connection, _: connection.answer(200, b"")}
        self._routes |= self.own_routes()

    def own_routes(self) -> dict[tuple[str, str], Callable[[Connection, bytes], None]]:
        raise NotImplementedError

    def read(self, fields: Body, *, chat: bool) -> Body:
        """The request as vLLM would get it. Raises RefusedError."""
        raise NotImplementedError

    def metrics(self, connection: Connection, _: bytes) -> None:
        lines = []
        for line in self.state.metrics(self.faults.waiting).decode().splitlines():
            name = re.split(r"[{ ]", line)[0]
            if name in self.renamed:
                lines.append(line.replace(name, self.renamed[name], 1))
        connection.answer(200, "\n".join(lines).encode() + b"\n", b"text/plain; version=0.0.4")

    def _generate(self, connection: Connection, path: str, headers: dict[str, str], body: bytes) -> None:
        if path not in _SERVED:
            connection.answer(404, orjson.dumps({"detail": "Not Found"}))
            return
        fields, chat = orjson.loads(body), path == CHAT
        self.received.append(fields)
        try:
            read = self.read(dict(fields), chat=chat)
        except RefusedError as refused:
            if fields.get("stream") and refused.body.get("_in_stream"):
                error = {k: v for k, v in refused.body.items() if k != "_in_stream"}
                event = b"data: " + orjson.dumps({"error": error}) + b"\n\n" + DONE
                connection.write(STREAM_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
                connection.finished()
                return
            connection.answer(refused.status, orjson.dumps(refused.body))
            return
        super()._generate(connection, path, headers, orjson.dumps(read))

    def _likeliest(self, model: str, tokens: int, top: int) -> tuple[str, list[float]]:
        """The text and the logprobs of the likeliest first tokens that a probe gets."""
        self.state.verifications[model] += 1
        probe = {"model": model, "prompt": ["one prompt"], "max_tokens": tokens, "logprobs": top}
        _, answer = probed(probe, self.state, self.faults, distinct=str(self.port))
        choice = orjson.loads(answer)["choices"][0]
        return choice["text"], list(choice["logprobs"]["top_logprobs"][0].values())

    def _load(self, name: str, path: str) -> bool:
        """Load what a request names, if it is there."""
        if name in self.state.adapters:
            return True
        return self.state.load({"lora_name": name, "lora_path": path})[0] == 200

    def cards(self, owner: str, adapters: dict[str, str]) -> bytes:
        spec = self.state.spec
        listed = orjson.loads(answers.model_cards(spec.base, spec.root, adapters, spec.max_model_len))
        for card in listed["data"]:
            card["owned_by"] = owner
            del card["permission"]
        return orjson.dumps(listed)


def bad_request(message: str, code: int) -> Body:
    """As SGLang and TensorRT-LLM say it."""
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": code}
