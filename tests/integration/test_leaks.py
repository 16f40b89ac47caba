"""Prompts, keys and paths stay where they belong: not in a log line, an error, a metric, or a file of the state
directory; and no tenant's answer names another tenant.

Requests of every kind carry markers, through good engines and failing ones. Then all that the gateway has said and
written is searched for them.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import KEY, Served, add_engine, serving
from tests.support.forms import some_of
from tests.support.lora import lora_config, write_adapter
from tests.support.waiting import until_now

PROMPT = "zqPromptMarker"
END_USER = "zqUserMarker"
"""Kept in usage records, and nowhere else: see docs/dimensions.md."""
"""In everything that a client sends as content."""
INVALID_KEY = "fl_000000000000_zqKeyMarker"
NEIGHBOUR = "zq-neighbour"
FOLDER = "zqPathMarker"
"""In the path of the adapters' files, and in paths that engines tell."""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "system", "content": f"You know {PROMPT}."}, {"role": "user", "content": PROMPT}]
TALK = (
    f"1 validation error for Request\n  loc\n Value error [input_value='{PROMPT}'] /srv/{FOLDER}/x.py fl-{NEIGHBOUR}",
    f"ValueError: bad {{'messages': '{PROMPT}'}} in /srv/{FOLDER}/adapter_config.json of {NEIGHBOUR}/support",
)
"""What engines may say of a request."""


@dataclass
class Site:
    gateway: Served
    engine: MockProcess
    folder: Path
    keys: dict[str, str]
    answers: dict[str, list[str]] = field(default_factory=dict)
    """What each tenant got: statuses, headers and bodies."""

    def ask(self, tenant: str, path: str = CHAT, *, timeout: float = 20, **fields: Any) -> int:
        body = {"model": "support", **({"messages": MESSAGES} if path == CHAT else {"prompt": PROMPT})}
        return self.send(tenant, "POST", path, timeout=timeout, json=body | fields)

    def send(self, tenant: str, method: str, path: str, **options: Any) -> int:
        key = self.keys.get(tenant, tenant)
        headers = {"authorization": f"Bearer {key}", **options.pop("headers", {})}
        answer = httpx2.request(method, self.gateway.url + path, headers=headers, **options)
        said = f"{answer.status_code} {answer.headers} {answer.text}"
        self.answers.setdefault(tenant, []).append(said)
        return answer.status_code


@pytest.fixture(params=some_of(["json", "text"], "json"))
def site(request: pytest.FixtureRequest, tmp_path: Path, model: Path) -> Iterator[Site]:
    state = tmp_path / "state"
    settings = {
        "FLORIN_LOG_LEVEL": "debug", "FLORIN_LOG_FORMAT": request.param, "FLORIN_ACCESS_LOG": "true",
        "FLORIN_FIRST_BYTE_TIMEOUT": "3", "FLORIN_HANG_TIMEOUT": "4", "FLORIN_ENGINE_IDLE_TIMEOUT": "3",
        "FLORIN_PLACEMENT_TIMEOUT": "6",
    }  # fmt: skip
    with MockProcess(version="0.33.0", root=str(model)) as engine, serving(state, **settings) as gateway:
        add_engine(gateway, engine)
        keys = {}
        folder = tmp_path / FOLDER
        for tenant in ("acme", NEIGHBOUR):
            gateway.call("POST", "/admin/v1/tenants", {"name": tenant})
            keys[tenant] = made_key(gateway, tenant, "tenant")
            files = write_adapter(folder / tenant, config=lora_config(base_model_name_or_path="base"))
            gateway.call("POST", "/admin/v1/adapters", {"adapter": f"{tenant}/support", "source": str(files)})
        keys["finance"] = made_key(gateway, "acme", "finance")
        yield Site(gateway, engine, folder, keys)


def made_key(gateway: Served, tenant: str, role: str) -> str:
    return str(gateway.call("POST", "/admin/v1/keys", {"tenant": tenant, "role": role})["key"])


def good(site: Site) -> None:
    for tenant in ("acme", NEIGHBOUR):
        for path in (CHAT, TEXT):
            assert site.ask(tenant, path) == 200
            assert site.ask(tenant, path, stream=True, user=END_USER) == 200
    picture = base64.b64encode(PROMPT.encode()).decode()
    parts = [
        {"type": "text", "text": PROMPT},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
    ]
    tool = {"type": "function", "function": {"name": PROMPT, "parameters": {"enum": [PROMPT]}}}
    assert site.ask("acme", messages=[{"role": "user", "content": parts}], tools=[tool], stop=[PROMPT]) == 200
    assert site.ask("acme", prompt_logprobs=1) == 200
    assert site.ask("acme", metadata={"a": PROMPT}, brand_new={"a": PROMPT}) == 200
    assert site.send("acme", "GET", "/v1/models") == 200


def bad(site: Site) -> None:
    url = f"https://{PROMPT.lower()}.example.com/{PROMPT}"
    look = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    for fields in (
        {"messages": look}, {"messages": [{"role": "user", "content": {"a": PROMPT}}]}, {"messages": PROMPT},
        {"temperature": PROMPT}, {"stop": [[PROMPT]]}, {"prompt_logprobs": PROMPT}, {"chat_template": PROMPT},
        {"structured_outputs": {"regex": f"({PROMPT})*" * 90}}, {"structured_outputs": {"grammar": PROMPT}},
        {"max_tokens": 10**6, "ignore_eos": True}, {"response_format": {"type": PROMPT}}, {"tools": [{"type": PROMPT}]},
        {"chat_template_kwargs": {"a": {"b": PROMPT}}}, {"stream_options": {"include_usage": PROMPT}},
    ):  # fmt: skip
        assert site.ask("acme", **fields) == 400
    for raw in (f'{{"messages": {PROMPT}', f'"{PROMPT}"', f"[{PROMPT}", "[" * 50_000 + PROMPT):
        assert site.send("acme", "POST", CHAT, content=raw.encode()) == 400
    assert site.send("acme", "POST", CHAT, content=PROMPT.encode() * 1_300_000) == 413
    assert site.ask("acme", TEXT, prompt=f"{PROMPT} " * 10_000) == 400  # exceeds the context


def unauthorized(site: Site) -> None:
    assert site.ask(INVALID_KEY) == 401
    assert site.ask("finance") == 403
    for path in (
        f"/v1/models?api_key={site.keys['acme']}",
        f"/admin/v1/tenants?key={KEY}",
        f"/finance/v1/usage?t={KEY}",
    ):
        site.send("acme", "GET", path)
    for tenant in ("acme", INVALID_KEY):
        for method, path in (
            ("GET", "/admin/v1/keys"),
            ("POST", "/admin/v1/adapters"),
            ("GET", "/finance/v1/costs"),
        ):
            site.send(tenant, method, path, json={"source": PROMPT})
    for name in ("support", f"{NEIGHBOUR}/support", f"{NEIGHBOUR}/none"):
        site.send("acme", "GET", f"/v1/models/{name}")


def failing(site: Site) -> None:
    faults: list[dict[str, Any]] = [
        *({"status": status, "message": talk} for status in (400, 404, 422, 500, 503) for talk in TALK),
        {"rubbish": PROMPT}, {"rubbish": json.dumps({"choices": PROMPT})}, {"rubbish": json.dumps({"error": {"message": PROMPT}})},
        {"usage": json.dumps({"prompt_tokens": PROMPT})}, {"stop_at": "headers"}, {"stop_at": "events", "stop_how": "mid_event"},
        {"stop_at": "events", "stop_how": "error_event"}, {"abort": True},
    ]  # fmt: skip
    for fault in faults:
        for stream in (False, True):
            site.engine.faults(**fault, times=1)
            assert site.ask("acme", stream=stream) in (200, 400, 404, 422, 500, 502, 503, 504), fault
            site.engine.faults()


def hung(site: Site) -> None:
    for fault in ({"stop_at": "headers"}, {"stop_at": "events"}):
        site.engine.faults(**fault, stop_how="hang", times=1)
        with contextlib.suppress(httpx2.TimeoutException):  # a client that hangs up
            site.ask("acme", timeout=6, stream=True)
        site.engine.faults()
    site.engine.faults(event_delay=0.2)
    with contextlib.suppress(httpx2.TimeoutException):
        site.ask("acme", timeout=0.5, stream=True)
    site.engine.faults()


def commands(site: Site) -> None:
    florin = site.gateway.florin
    for args in (
        ("tenant", "list"), ("key", "list"), ("engine", "list"), ("adapter", "list"), ("placement",), ("doctor",),
        ("explain", "acme/support"), ("audit", "list"), ("cost", "report"), ("export",),
        ("adapter", "add", "acme/none", "--source", str(site.folder / "none")),
        ("key", "revoke", "none"), ("tenant", "add", "Not A Name"),
    ):  # fmt: skip
        done = florin(*args)
        assert "Traceback" not in done.stderr
        site.answers.setdefault("commands", []).append(done.stdout + done.stderr)


STORIES: tuple[Callable[[Site], None], ...] = (good, bad, unauthorized, commands, failing, hung)


def test_nothing_that_is_private_is_said_or_written(
    site: Site, tmp_path: Path, request: pytest.FixtureRequest
):
    for story in STORIES:
        if story is not commands or request.node.callspec.params["site"] == "json":  # they see no log
            story(site)
    metrics = httpx2.get(f"{site.gateway.url}/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    until_now(lambda: site.gateway.florin("cost", "report").returncode == 0)
    site.gateway.stop()
    log = site.gateway.errors.read_text()
    assert len(log.splitlines()) > 100
    assert "Traceback" not in log
    secrets = [
        KEY,
        INVALID_KEY,
        "zqKeyMarker",
        *site.keys.values(),
        *(k.split("_", 2)[2] for k in site.keys.values()),
    ]

    def search(what: str, text: str, *words: str) -> None:
        for word in words:
            for spelled in (word, base64.b64encode(word.encode()).decode().rstrip("=")[:-1]):
                found = text.lower().find(spelled.lower())
                assert found < 0, f"{what}: {text[max(0, found - 200) : found + 100]}"

    for said in (f"a {PROMPT.upper()}", base64.b64encode(PROMPT.encode()).decode()):
        with pytest.raises(AssertionError):
            search("itself", said, PROMPT)
    search("log", log, PROMPT, END_USER, FOLDER, *secrets)
    search("metrics", metrics, PROMPT, END_USER, FOLDER, *secrets)
    for said in site.answers.get("commands", []):
        search("command", said, PROMPT, *secrets)
    for tenant, said in site.answers.items():
        for answer in said if tenant != "commands" else ():
            search(f"answer to {tenant}", answer, FOLDER, *(secrets if tenant != NEIGHBOUR else ()))
    foreign = [a for a in site.answers["acme"] if not a.startswith("404")]  # which repeats the name asked for
    for answer in foreign:
        search("answer to acme", answer, NEIGHBOUR)
    for path in tmp_path.rglob("*"):
        if path.is_file() and site.folder not in path.parents:
            search(path.name, path.read_bytes().decode(errors="replace"), PROMPT, *secrets)
