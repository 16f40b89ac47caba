"""A stand-in for the gateway's API over a real socket: canned answers, and what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.commands import lazy_groups
from gateway.commands.tree import tree
from tests.support.routes import check_answer

KEY = "fl_abc_secret"


@pytest.fixture(scope="session")
def built_once() -> Iterator[None]:
    """Typer makes the commands of a group from their signatures, each time that one of them runs."""
    build: Callable[..., Any] = lazy_groups.loaded
    built: dict[tuple[str, int], Any] = {}

    def loaded(name: str, entry: Any) -> Any:
        key = name, id(entry)
        if key not in built:
            built[key] = entry, build(name, entry)  # the entry, too: its id must not become another's
        return built[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_groups, "loaded", loaded)
        yield


@dataclass
class FakeGateway:
    url: str = ""
    answers: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    """(method, path with query) → (status, JSON body, or bytes as they are)"""
    headers: dict[str, str] = field(default_factory=dict)
    """Of every answer."""
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def answer(self, method: str, path: str, body: Any, status: int = 200) -> None:
        """What the gateway could not answer there is refused: see `check_answer`."""
        if status < 400 and isinstance(body, dict):
            check_answer(method, path, body)
        self.answers[method, path] = (status, body)

    def florin(self, *args: str) -> Result:
        return CliRunner().invoke(tree(), args, env={"FLORIN_URL": self.url, "FLORIN_OPERATOR_KEY": KEY})

    def florin_says(self, said: str, *args: str) -> Result:
        """With somebody at the keyboard."""
        env = {"FLORIN_URL": self.url, "FLORIN_OPERATOR_KEY": KEY}
        return CliRunner().invoke(tree(), args, env=env, input=said)


def _read(raw: bytes) -> Any:
    """JSON, or a file as it is."""
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return raw


class Server(ThreadingHTTPServer):
    """One for all tests of a module. Mutable: for which of them it answers."""

    gateway: FakeGateway


class Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        gateway = self.server.gateway
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        gateway.asked.append((self.command, self.path, _read(raw)))
        gateway.keys.append(self.headers.get("authorization"))
        unknown = {"error": {"message": f"No {self.path}.", "type": "", "param": None, "code": "not_found"}}
        status, body = gateway.answers.get((self.command, self.path), (404, unknown))
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        for header in gateway.headers.items():
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815  # the names that http.server calls

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def fake_server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def fake(built_once: None, fake_server: Server) -> FakeGateway:
    fake_server.gateway = FakeGateway(f"http://127.0.0.1:{fake_server.server_port}")
    return fake_server.gateway


@pytest.fixture
def florin(built_once: None) -> Callable[..., Result]:
    """The command without any gateway in its environment."""

    def run(*args: str, **env: str | None) -> Result:
        return CliRunner().invoke(tree(), args, env={"FLORIN_URL": None, "FLORIN_OPERATOR_KEY": None} | env)

    return run
