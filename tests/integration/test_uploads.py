"""Uploads over real sockets: sound ones, and every kind of client that misbehaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from adapters.model import BaseModel, Engine, dump
from adapters.store.embedded import EmbeddedValkey
from adapters.store.protocol.registry import Change
from gateway.commands.client import Api, ApiError
from gateway.composition.build import UPLOADS
from gateway.fleet.adapters.commands.packing import PIECE
from gateway.fleet.adapters.schemas.adapters import RegisteredVersion
from gateway.operations.progress import OperationProgress
from tests.integration.uploading import Wire, adapter_files, path_of, staged, tar_of, zip_of
from tests.support.harness import OPERATOR_KEY, running_gateway
from tests.support.lora import LLAMA
from tests.support.waiting import PATIENCE_S, until

BOUNDARY = "b0undary"


@asynccontextmanager
async def fleet(tmp_path, valkey_url, prefix, **settings):
    """A gateway with a tenant and an engine that need not be there: nothing is called."""
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
        await gateway.add_tenant("acme")
        engine = Engine("a1", "http://127.0.0.1:9", "base", "h100", slots=2, max_rank=8, state="cordoned")
        await gateway.commit(
            Change("base", "base", dump(BaseModel("base", config=LLAMA.config))),
            Change("engine", "a1", dump(engine)),
        )
        yield gateway


@pytest.fixture
def impatient() -> None:
    """The gateway waits a second for the next bytes, not a minute."""


@pytest.fixture
async def gateway(request, tmp_path, valkey_url, prefix):
    settings = {"upload_idle_timeout": 1.0} if "impatient" in request.fixturenames else {}
    async with fleet(tmp_path, valkey_url, prefix, **settings) as running:
        yield running


@pytest.fixture
async def admin(gateway):
    async with gateway.http() as client:
        yield client


def form(content: bytes, *, before: str = "", disposition: str = 'name="file"; filename="a.tar"') -> bytes:
    head = f"{before}--{BOUNDARY}\r\ncontent-disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


async def empty(gateway) -> bool:
    """Nothing is staged, and no place taken. What clears up may still run when a refusal has been read."""
    await until(
        lambda: not staged(gateway.state.settings.artifacts) and not gateway.state.intake.uploads.running
    )
    return True


async def nothing_came_of_it(gateway, admin) -> bool:
    return await empty(gateway) and not (await admin.get("/admin/v1/adapters")).json()["data"]


def digest_of(files: dict[str, bytes]) -> str:
    lines = (f"{name}\0{hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


# -- what should work


async def test_an_upload_of_each_kind(gateway, admin, tmp_path, subtests: pytest.Subtests):
    for number, kind in enumerate(("tar", "tar.gz", "zip", "form", "chunked")):
        with subtests.test(kind):
            files, name = adapter_files(tmp_path, fill=number), f"acme/a{number}"
            body = {"tar.gz": tar_of(files, "w:gz"), "zip": zip_of(files)}.get(kind, tar_of(files))
            headers = {"content-type": "application/octet-stream"}
            if kind == "form":
                body, headers = form(body), {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
            sent = in_pieces(body) if kind == "chunked" else body
            answer = await admin.post(path_of(name), content=sent, headers=headers)
            assert answer.status_code == 201, answer.text
            assert answer.json() == {
                "adapter": name,
                "version": "v1",
                "digest": digest_of(files),
                "live": "v1",
                "created": True,
                "warnings": [],
            }
            version = (await admin.get(f"/admin/v1/adapters/{name}/versions")).json()["data"][0]
            assert version["source"] == ("upload:a.tar" if kind == "form" else "upload")
            again = await admin.post(path_of(name), content=body, headers=headers)
            assert (again.status_code, again.json()["created"], again.json()["version"]) == (200, False, "v1")
            assert await empty(gateway)


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(body), 1000):
        yield body[first : first + 1000]


async def test_the_expected_digest(gateway, admin, tmp_path):
    files = adapter_files(tmp_path)
    wrong = await admin.post(path_of(digest="sha256:" + "0" * 64), content=tar_of(files))
    assert wrong.status_code == 422
    assert [f["code"] for f in wrong.json()["error"]["findings"]] == ["digest_mismatch"]
    assert await nothing_came_of_it(gateway, admin)
    right = await admin.post(path_of(digest=digest_of(files)), content=tar_of(files))
    assert right.status_code == 201


async def test_two_uploads_of_the_same_content_at_once_make_one_version(gateway, admin, tmp_path):
    body = tar_of(adapter_files(tmp_path))
    answers = await asyncio.gather(*(admin.post(path_of(), content=body) for _ in range(5)))
    assert sorted(a.status_code for a in answers) == [200] * 4 + [201]
    assert {a.json()["version"] for a in answers} == {"v1"}
    assert await empty(gateway)


async def test_upload_does_not_block_requests(gateway, admin, tmp_path):
    body = tar_of(adapter_files(tmp_path))
    wire = await Wire.to(gateway.url)
    await wire.begin(len(body))
    await wire.send(body[:700])
    other = await admin.post(path_of("acme/other"), content=tar_of(adapter_files(tmp_path, fill=1)))
    assert other.status_code == 201
    assert (await admin.post("/admin/v1/tenants", json={"name": "bolt"})).status_code == 201
    await wire.send(body[700:])
    assert (await wire.answer())[0] == 201
    await wire.close()


async def test_steps_and_outcome_line_by_line(gateway, admin, tmp_path):
    body = tar_of(adapter_files(tmp_path))
    answer = await admin.post(path_of(), content=body, headers={"accept": "application/x-ndjson"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    *steps, last = map(json.loads, answer.text.splitlines())
    assert last["result"]["version"] == "v1"
    assert [s["step"] for s in steps] == ["unpack", "check", "store"]
    assert steps[0]["total"] == len(body)
    refused = await admin.post(path_of(), content=b"rubbish" * 99, headers={"accept": "application/x-ndjson"})
    assert refused.status_code == 200
    last = json.loads(refused.text.splitlines()[-1])
    assert last["error"]["code"] == "adapter_rejected"
    assert [f["code"] for f in last["error"]["findings"]] == ["archive_unsupported"]


async def test_the_steps_of_a_source_line_by_line(gateway, admin, tmp_path):
    adapter_files(tmp_path)
    body = {"adapter": "acme/support", "source": str(tmp_path / "made-0")}
    answer = await admin.post("/admin/v1/adapters", json=body, headers={"accept": "application/x-ndjson"})
    *steps, last = map(json.loads, answer.text.splitlines())
    assert last["result"]["version"] == "v1"
    assert [s["step"] for s in steps] == ["fetch", "check", "store"]


# -- what is refused before anything is sent


async def test_refused_before_the_body(gateway):
    for path, status, code in (
        (path_of("acme"), 400, "invalid_name"),
        (path_of("nobody/x"), 404, "not_found"),
        (path_of(base_model="other"), 404, "not_found"),
        (path_of(digest="md5:1"), 400, "invalid_value"),
        ("/admin/v1/adapters/upload", 400, "invalid_value"),
    ):
        wire = await Wire.to(gateway.url)
        await wire.begin(10**9, path=path)
        assert await wire.refusal() == (status, code)
        await wire.close()
    wire = await Wire.to(gateway.url)
    await wire.begin(10, content_type="application/json")
    assert await wire.refusal() == (415, "invalid_value")
    await wire.close()
    assert await empty(gateway)


async def test_refused_where_the_disk_has_no_room_for_it(tmp_path, valkey_url, prefix):
    async with fleet(tmp_path, valkey_url, prefix, max_adapter_bytes=1 << 60) as gateway:
        wire = await Wire.to(gateway.url)
        await wire.begin(1 << 59)
        assert await wire.refusal() == (503, "artifacts_unavailable")
        await wire.close()
        assert await empty(gateway)


async def test_refused_by_the_length_that_it_announces(tmp_path, valkey_url, prefix):
    async with fleet(tmp_path, valkey_url, prefix, max_adapter_bytes=4096) as gateway:
        for length in (4096 + 1024**2 + 1, 1 << 59):
            wire = await Wire.to(gateway.url)
            await wire.begin(length)
            assert await wire.refusal() == (413, "body_too_large")
            await wire.close()


# -- clients that misbehave


async def test_the_command_is_told_why_though_it_is_still_sending(tmp_path, valkey_url, prefix):
    async with fleet(tmp_path, valkey_url, prefix, max_adapter_bytes=4096) as gateway:
        api = Api.to(gateway.url, OPERATOR_KEY)
        size = 64 * 1024**2
        pieces = (bytes(PIECE) for _ in range(size // PIECE))
        params = {"adapter": "acme/support"}
        with pytest.raises(ApiError) as refused:
            await asyncio.to_thread(
                api.work,
                "/admin/v1/adapters/upload",
                RegisteredVersion,
                params=params,
                content=pieces,
                size=size,
            )
        assert (refused.value.status, refused.value.code) == (413, "body_too_large")


@pytest.mark.parametrize("how", ["plain", "form"])
async def test_too_much_is_cut_off_while_it_streams(tmp_path, valkey_url, prefix, how):
    async with fleet(tmp_path, valkey_url, prefix, max_adapter_bytes=4096) as gateway:
        wire = await Wire.to(gateway.url)
        if how == "form":
            await wire.begin(None, content_type=f"multipart/form-data; boundary={BOUNDARY}")
            head = form(b"").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            await wire.send(b"%x\r\n%s\r\n" % (len(head), head))
        else:
            await wire.begin(None)
        piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        sent = 0
        try:
            while sent < 64 and not wire.answered:
                await wire.send(piece)
                sent += 1
                await asyncio.sleep(0)
        except ConnectionError:
            pass  # the gateway has hung up: its answer lies in the socket
        assert await wire.refusal() == (413, "body_too_large")
        assert await empty(gateway)
        await wire.close()


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_stops_sending(gateway, admin, tmp_path):
    body = tar_of(adapter_files(tmp_path))
    wire = await Wire.to(gateway.url)
    await wire.begin(len(body))
    await wire.send(body[:2000])
    assert await wire.refusal() == (408, "upload_incomplete")
    assert await wire.rest() == b""  # and is hung up on
    await wire.close()
    assert await nothing_came_of_it(gateway, admin)


@pytest.mark.usefixtures("impatient")
async def test_client_that_sends_too_slowly(gateway, admin):
    wire = await Wire.to(gateway.url)
    await wire.begin(10**6)
    answer = asyncio.create_task(wire.refusal())
    while not answer.done():
        await wire.send(b"x")
        await asyncio.wait([answer], timeout=0.2)
    assert answer.result() == (408, "upload_incomplete")
    await wire.close()
    assert await nothing_came_of_it(gateway, admin)


async def test_client_disconnect(gateway, admin, tmp_path):
    body = tar_of(adapter_files(tmp_path))
    for sent in (0, 700, 4000):
        wire = await Wire.to(gateway.url)
        await wire.begin(len(body))
        await wire.send(body[:sent])
        await asyncio.sleep(0.1)
        await wire.close()
        assert await nothing_came_of_it(gateway, admin)


async def test_a_length_that_is_too_short(gateway, admin, tmp_path):
    """What is more than announced is no part of the body, but rubbish on the wire: the server hangs up."""
    body = tar_of(adapter_files(tmp_path))
    wire = await Wire.to(gateway.url)
    await wire.begin(1000)
    await wire.send(body)
    assert (await wire.answer())[0] in {400, 422}
    await wire.close()
    assert await nothing_came_of_it(gateway, admin)


async def test_bodies_that_are_not_uploads(gateway, admin):
    for content_type, body in (
        ("multipart/form-data", b"x"),
        (f"multipart/form-data; boundary={'b' * 400}", b"x"),
        (f"multipart/form-data; boundary={BOUNDARY}", b"this is no form"),
        (f"multipart/form-data; boundary={BOUNDARY}", form(b"x")[:-9]),
        (f"multipart/form-data; boundary={BOUNDARY}", form(b"")),
        (f"multipart/form-data; boundary={BOUNDARY}", form(b"x", disposition='name="file"')),
        (
            f"multipart/form-data; boundary={BOUNDARY}",
            form(b"x", before=f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="a"\r\n\r\nb\r\n'),
        ),
        (f"multipart/form-data; boundary={BOUNDARY}", form(b"x")[:-4] + b"\r\n" + form(b"y")),
        (f"multipart/form-data; boundary={BOUNDARY}", form(b"x", disposition="x" * 100_000)),
        ("application/octet-stream", b""),
    ):
        answer = await admin.post(path_of(), content=body, headers={"content-type": content_type})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "upload_incomplete")
    assert await nothing_came_of_it(gateway, admin)


async def test_concurrent_uploads_are_limited(gateway, admin, tmp_path):
    gateway.state.intake.uploads._timeout = 0.2
    wires = [await Wire.to(gateway.url) for _ in range(UPLOADS)]
    for wire in wires:
        await wire.begin(10**6)
        await wire.send(b"x")
    while gateway.state.intake.uploads.running < UPLOADS:
        await asyncio.sleep(0.01)
    answer = await admin.post(path_of(), content=b"x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_uploads")
    assert answer.headers["retry-after"] == "10"
    for wire in wires:
        await wire.close()
    assert await empty(gateway)
    answer = await admin.post(path_of(), content=tar_of(adapter_files(tmp_path)))
    assert answer.status_code == 201


# -- hanging up while the gateway works


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_disconnect_aborts_the_work(gateway, admin, tmp_path, monkeypatch, accept):
    """The work is held in the middle of unpacking until the client has gone."""
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    told = []
    real = OperationProgress.__call__

    def slowly(self, step, done, total):
        told.append(step)
        asyncio.run_coroutine_threadsafe(gone.wait(), loop).result(PATIENCE_S)
        real(self, step, done, total)

    abandoned = asyncio.Event()
    monkeypatch.setattr(OperationProgress, "__call__", slowly)
    ending = OperationProgress.abandon
    monkeypatch.setattr(OperationProgress, "abandon", lambda self: (ending(self), abandoned.set()))
    body = tar_of(adapter_files(tmp_path))
    wire = await Wire.to(gateway.url)
    await wire.begin(len(body), accept=accept)
    await wire.send(body)
    while not told:
        await asyncio.sleep(0.01)
    assert staged(gateway.state.settings.artifacts)
    await wire.close()
    await asyncio.wait_for(abandoned.wait(), PATIENCE_S)
    gone.set()
    assert await nothing_came_of_it(gateway, admin)
    assert told == ["unpack"]


async def test_what_was_prepared_is_refused_while_redis_is_away(tmp_path, prefix):
    with EmbeddedValkey(tmp_path / "redis") as server:
        async with fleet(tmp_path, server.url, prefix) as gateway, gateway.http() as admin:
            body = tar_of(adapter_files(tmp_path))
            wire = await Wire.to(gateway.url)
            await wire.begin(len(body))
            await wire.send(body[:3000])
            await asyncio.sleep(0.1)
            server.stop()
            await wire.send(body[3000:])
            assert await wire.refusal() == (503, "store_unavailable")
            await wire.close()
            assert await empty(gateway)
            server.start()
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    answer = await admin.post(path_of(), content=body)
                    if answer.status_code != 503:
                        break
                    await asyncio.sleep(0.1)
            assert (answer.status_code, answer.json()["version"]) == (201, "v1")
