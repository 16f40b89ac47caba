"""`kill -9` of a real `florin serve` at every step of an upload: afterwards the version is there whole, or
nothing of it is, and sending it again succeeds.

Each kill is triggered by what the steps leave on the disk and in Redis. After it nothing moves any more, so
what was reached is looked at, and a kill that came a moment too late is tried again with other weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest
import redis

from adapters.store.embedded import EmbeddedValkey
from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import Served, serving
from tests.integration.uploading import path_of, tar_of
from tests.support.forms import some_of
from tests.support.harness import OPERATOR_KEY
from tests.support.lora import LLAMA, Family, lora_config, lora_tensors, safetensors_bytes

CONFIG = LLAMA.config | {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}
KINDS = ("q_proj", "v_proj")
BIG = Family("big", CONFIG, {f"self_attn.{kind}": (1024, 1024) for kind in KINDS}, layers=2)
RANK = 128
MOST_RANK = 8 * RANK
TRIES = 40
PATIENCE = 60.0
CHAT = {"model": "support", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@dataclass
class Parcel:
    """An adapter of 4 MiB by default, and the archive that is sent."""

    fill: int
    rank: int = RANK
    files: dict[str, bytes] = field(init=False)
    body: bytes = field(init=False)

    def __post_init__(self) -> None:
        config = lora_config(rank=self.rank, base_model_name_or_path="base", lora_alpha=self.rank)
        weights = safetensors_bytes(lora_tensors(BIG, rank=self.rank), fill=self.fill)
        self.files = {
            "adapter_config.json": json.dumps(config).encode(),
            "adapter_model.safetensors": weights,
        }
        self.body = tar_of(self.files)

    @property
    def digest(self) -> str:
        lines = (f"{n}\0{hashlib.sha256(c).hexdigest()}\n" for n, c in sorted(self.files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass
class Installation:
    """What outlives a gateway: its state directory, its Redis, an engine. The gateway runs when asked for."""

    tmp: Path
    valkey: EmbeddedValkey
    key: str = ""
    tries: int = 0
    running: ExitStack = field(default_factory=ExitStack)
    served: Served | None = None

    def gateway(self) -> Served:
        if self.served is None:
            self.served = self.running.enter_context(
                serving(
                    self.tmp / "state", FLORIN_REDIS_URL=self.valkey.url, FLORIN_OPERATOR_KEY=OPERATOR_KEY
                )
            )
        return self.served

    def kill(self) -> None:
        assert self.served is not None
        self.served.process.send_signal(signal.SIGKILL)
        self.served.process.wait(PATIENCE)
        self.served = None
        self.running.close()

    def parcel(self, rank: int) -> tuple[Parcel, str]:
        """Weights and a name that were not used before."""
        self.tries += 1
        return Parcel(self.tries, rank), f"acme/support{self.tries}"

    @property
    def artifacts(self) -> Path:
        return self.tmp / "state" / "artifacts"

    # -- what is there, seen from outside

    def staged(self, name: str) -> list[int]:
        """Sizes of the files of that name in staging."""
        found = []
        for at, _, names in os.walk(self.artifacts / ".staging"):
            if name in names:
                with suppress(FileNotFoundError):
                    found.append((Path(at) / name).stat().st_size)
        return found

    def boxes(self) -> int:
        staging = self.artifacts / ".staging"
        return len(list(staging.iterdir())) if staging.exists() else 0

    def published(self, parcel: Parcel) -> bool:
        return (self.artifacts / parcel.digest).exists()

    def committed(self, parcel: Parcel) -> bool:
        with redis.Redis.from_url(self.valkey.url) as client:
            versions = client.hvals("{florin}:doc:version")
        return any(parcel.digest.encode() in text for text in versions)


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("installation")
    (tmp / "model").mkdir()
    (tmp / "model" / "config.json").write_text(json.dumps(CONFIG))
    with (
        EmbeddedValkey(tmp / "redis") as valkey,
        MockProcess(root=str(tmp / "model"), max_lora_rank=MOST_RANK) as engine,
    ):
        made = Installation(tmp, valkey)
        with made.running, client_of(made.gateway()) as admin:
            admin.post("/admin/v1/tenants", json={"name": "acme"}).raise_for_status()
            key = admin.post("/admin/v1/keys", json={"tenant": "acme"}).raise_for_status()
            made.key = key.json()["key"]
            registration = {
                "name": "a1", "url": engine.url, "base": "base", "gpu_type": "H100", "slots": 4, "max_rank": MOST_RANK,
            }  # fmt: skip
            admin.post("/admin/v1/engines", json=registration).raise_for_status()
            yield made


def client_of(served: Served, key: str = OPERATOR_KEY) -> httpx2.Client:
    return httpx2.Client(base_url=served.url, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE)


def begin(served: Served, parcel: Parcel, adapter: str) -> socket.socket:
    parts = urlsplit(served.url)
    connection = socket.create_connection((parts.hostname, parts.port))
    connection.sendall(
        f"POST {path_of(adapter)} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {OPERATOR_KEY}\r\n"
        f"content-type: application/x-tar\r\ncontent-length: {len(parcel.body)}\r\n\r\n".encode()
    )
    return connection


def when(holds: Callable[[], object]) -> None:
    """As soon as it holds: there are milliseconds between the steps."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it does not come about"


# -- the steps: (what is sent of the body, when to kill, what must have been reached)


@dataclass(frozen=True)
class Step:
    part: Callable[[int], int]
    trigger: Callable[[Installation, Parcel], object]
    reached: Callable[[Installation, Parcel], object]
    redis_stopped: bool = False
    rank: int = RANK
    """A higher one makes a longer step, whose middle is easier to hit."""
    missed: Callable[[Installation, Parcel], object] = Installation.published
    """Whether its moment has passed unseen, so that the trigger will not come about any more."""


WEIGHTS = "adapter_model.safetensors"
UNDONE: Callable[[Installation, Parcel], bool] = lambda i, p: not i.published(p) and not i.committed(p)  # noqa: E731 - one of a table's cells

STEPS = {
    "before the body": Step(
        lambda size: 0,
        lambda i, p: i.staged("upload"),
        lambda i, p: UNDONE(i, p) and i.staged("upload") == [0],
    ),
    "in the middle of the body": Step(
        lambda size: size * 2 // 3,
        lambda i, p: max(i.staged("upload"), default=0) >= 1024**2,
        lambda i, p: UNDONE(i, p) and 0 < i.staged("upload")[0] < len(p.body),
    ),
    "after the body": Step(
        lambda size: size,
        lambda i, p: i.staged("upload") == [len(p.body)],
        lambda i, p: UNDONE(i, p) and i.staged("upload") == [len(p.body)] and not i.staged(WEIGHTS),
    ),
    "while it is unpacked": Step(
        lambda size: size,
        lambda i, p: i.staged(WEIGHTS),
        lambda i, p: UNDONE(i, p) and i.staged(WEIGHTS) and i.staged(WEIGHTS)[0] < len(p.files[WEIGHTS]),
        rank=MOST_RANK,
    ),
    "while it is checked": Step(
        lambda size: size,
        lambda i, p: i.staged(WEIGHTS) == [len(p.files[WEIGHTS])],
        lambda i, p: UNDONE(i, p) and i.staged(WEIGHTS) == [len(p.files[WEIGHTS])],
    ),
    "after it is published": Step(
        lambda size: size,
        lambda i, p: i.published(p),
        lambda i, p: i.published(p),
        redis_stopped=True,
    ),
    "after the commit": Step(
        lambda size: size,
        lambda i, p: i.committed(p),
        lambda i, p: i.published(p) and i.committed(p),
        missed=lambda i, p: False,
    ),
}


@pytest.mark.parametrize("name", some_of(STEPS, "in the middle of the body", "after it is published"))
def test_kill_9(installation, name):
    for _ in range(TRIES):
        parcel, adapter = installation.parcel(STEPS[name].rank)
        reached = kill_at(STEPS[name], installation, parcel, adapter)
        check(installation, parcel, adapter)
        if reached:
            return
    pytest.fail(f"{TRIES} kills, and none of them {name}")


def kill_at(step: Step, installation: Installation, parcel: Parcel, adapter: str) -> bool:
    valkey = psutil.Process(installation.valkey.pid)
    with begin(installation.gateway(), parcel, adapter) as connection:
        if step.redis_stopped:
            when(lambda: installation.staged("upload"))  # what needs Redis before the body is over
            valkey.suspend()
        connection.sendall(parcel.body[: step.part(len(parcel.body))])
        when(lambda: step.trigger(installation, parcel) or step.missed(installation, parcel))
        installation.kill()
    valkey.resume()
    return bool(step.reached(installation, parcel))


def check(installation: Installation, parcel: Parcel, adapter: str) -> None:
    """Whole or nothing; and whole after it was sent again."""
    served = installation.gateway()
    assert installation.boxes() == 0
    with client_of(served) as admin, client_of(served, installation.key) as customer:
        shown = admin.get(f"/admin/v1/adapters/{adapter}")
        whole = shown.status_code == 200
        assert whole == installation.committed(parcel)
        if whole:
            check_version(shown.json(), installation, parcel)
            assert served_version(customer, adapter) == f"{adapter}@v1"
        else:
            assert shown.status_code == 404
            assert customer.post("/v1/chat/completions", json=CHAT | {"model": adapter}).status_code == 404
        again = admin.post(path_of(adapter), content=parcel.body)
        assert again.status_code == (200 if whole else 201), again.text
        assert (again.json()["version"], again.json()["created"]) == ("v1", not whole)
        check_version(admin.get(f"/admin/v1/adapters/{adapter}").json(), installation, parcel)
        assert served_version(customer, adapter) == f"{adapter}@v1"
        assert len(audited(admin, adapter)) == 1
    assert installation.boxes() == 0


def check_version(shown: dict, installation: Installation, parcel: Parcel) -> None:
    assert shown["versions"] == ["v1"]
    [version] = shown["version_details"]
    assert version["digest"] == f"sha256:{parcel.digest}"
    held = {path.name: path.read_bytes() for path in (installation.artifacts / parcel.digest).iterdir()}
    assert held == parcel.files


def served_version(customer: httpx2.Client, adapter: str) -> str:
    answer = customer.post("/v1/chat/completions", json=CHAT | {"model": adapter})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-florin-adapter"]


def audited(admin: httpx2.Client, adapter: str) -> list:
    asked = {"subject": adapter, "action": "adapter.add"}
    return admin.get("/admin/v1/audit", params=asked).json()["data"]


def test_redis_is_killed_in_the_middle(installation):
    """What Redis had acknowledged is there when it is back; the upload that it broke is refused, and leaves
    nothing behind."""
    (first, one), (second, two) = installation.parcel(RANK), installation.parcel(RANK)
    served = installation.gateway()
    with client_of(served) as admin:
        when(
            lambda: admin.post(path_of(one), content=first.body).status_code in {200, 201}
        )  # Redis may be slow
        with begin(served, second, two) as connection:
            connection.sendall(second.body[: len(second.body) // 2])
            when(lambda: installation.staged("upload"))
            psutil.Process(installation.valkey.pid).kill()
            connection.sendall(second.body[len(second.body) // 2 :])
            answer = b""
            while b'"store_unavailable"' not in answer:
                answer += connection.recv(65536) or pytest.fail(answer.decode())
        assert answer.startswith(b"HTTP/1.1 503 ")
        when(lambda: installation.boxes() == 0)
        when(lambda: not installation.valkey.alive)
        installation.valkey.start()
        when(lambda: admin.post("/admin/v1/tenants", json={"name": "acme"}).status_code == 200)
        check(installation, second, two)
        check_version(admin.get(f"/admin/v1/adapters/{one}").json(), installation, first)
