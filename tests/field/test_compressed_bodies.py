"""Requests whose bodies are compressed are read, within bounds, or refused by the encoding's name.

Source: a survey of clients
Sent: chats with `content-encoding: gzip` or `deflate`, at once and in parts; with `zstd`, `br`, or two encodings; bodies
    that are not what their header says; bodies of a few kilobytes that expand a thousandfold.
Right: the first are answered; the second get 415 with the encoding's name and, in `accept-encoding`, what can be sent;
    the rest get 400 or 413. What was decoded counts as the body, and is given back.
Why: "not valid JSON: surrogates not allowed" sends people looking for an error in their JSON. A body costs what it
    expands to, so that is what its limits count.
"""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import AsyncIterator, Iterable

import httpx2
import orjson
import pytest

from gateway.admission.in_flight import Limit
from tests.integration.conftest import Deployment
from tests.support.waiting import until

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024
NOTHING = "<InFlightLimits 0 requests, 0 bytes, 0 keys, 0 tenants>"


def body(text: str) -> bytes:
    return orjson.dumps({"model": "support", "messages": [{"role": "user", "content": text}]})


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


async def post(
    deployment: Deployment, content: bytes | AsyncIterator[bytes], *encodings: str
) -> httpx2.Response:
    headers = [("content-type", "application/json"), *(("content-encoding", name) for name in encodings)]
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as client:
        response = await client.post(CHAT, content=content, headers=headers)
    await until(lambda: repr(deployment.gateway.state.lifecycle.in_flight) == NOTHING)
    return response


async def parts_of(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


TEXT = "".join(f"{i}bottles-of-beer," for i in range(60_000))


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(body(TEXT))),
        ("X-GZip", gzip.compress(body("Hello!"))),
        ("deflate", zlib.compress(body(TEXT))),
        ("deflate", raw_deflate(body("Hello!"))),  # as some clients understand the word
        ("identity", body("Hello!")),
    ],
    ids=["gzip", "x-gzip", "zlib", "deflate", "identity"],
)
async def test_a_compressed_body_is_answered(deployment: Deployment, encoding: str, packed: bytes):
    response = await post(deployment, packed, encoding)
    assert response.status_code == 200, response.text
    in_parts = parts_of(packed[i : i + 1000] for i in range(0, len(packed), 1000))
    assert (await post(deployment, in_parts, encoding)).status_code == 200
    sent, again = (call.body["messages"] for call in deployment.calls())
    assert sent == again
    assert sent[0]["content"] in (TEXT, "Hello!")


async def test_what_it_expands_to_counts_as_its_memory(deployment: Deployment):
    in_flight = deployment.gateway.state.lifecycle.in_flight
    enough, narrow = Limit(10, MIB * 64), Limit(10, len(body(TEXT)) - 1)
    in_flight.reconfigure(key=enough, tenant=narrow, worker=enough)
    response = await post(deployment, gzip.compress(body(TEXT)), "gzip")
    assert (response.status_code, response.json()["error"]["code"]) == (429, "too_many_requests")


async def test_the_admin_api_takes_them_too(deployment: Deployment):
    async with deployment.gateway.http() as client:
        packed = gzip.compress(b'{"name": "dora"}')
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        response = await client.post("/admin/v1/tenants", content=packed, headers=headers)
    assert (response.status_code, response.json()["name"]) == (201, "dora"), response.text


@pytest.mark.parametrize("encodings", [("zstd",), ("br",), ("gzip", "gzip"), ("gzip, deflate",)])
async def test_an_encoding_that_is_not_accepted_is_named(deployment: Deployment, encodings: tuple[str, ...]):
    response = await post(deployment, b"\x28\xb5\x2f\xfd", *encodings)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (415, "content-encoding")
    assert f"`{', '.join(encodings)}`" in error["message"]
    assert response.headers["accept-encoding"] == "gzip, deflate"


async def test_files_are_uploaded_as_they_are(deployment: Deployment):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as client:
        form = {"purpose": (None, "batch"), "file": ("a.jsonl", b"{}")}
        response = await client.post("/v1/files", files=form, headers={"content-encoding": "gzip"})
    assert (response.status_code, response.headers["accept-encoding"]) == (415, "identity")


SOUND = gzip.compress(body("Hello!"))
BROKEN = {
    "not what its header says": (body("Hello!"), "not valid gzip"),
    "empty": (b"", "not valid gzip: it is truncated"),
    "truncated": (SOUND[:-4], "not valid gzip: it is truncated"),
    "with another after it": (SOUND + SOUND, "not valid gzip: something follows its end"),
    "with a wrong checksum": (SOUND[:-8] + b"\0\0\0\0" + SOUND[-4:], "not valid gzip"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_body_is_refused(deployment: Deployment, content: bytes, message: str):
    response = await post(deployment, content, "gzip")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "content-encoding"), error
    assert message in error["message"]


BOMBS = {
    "repeats itself": (b" " * (8 * MIB), 400, "100 times as large as it is compressed"),
    "larger than the limit": (
        b"".join(random.Random(i).randbytes(MIB // 64) * 64 for i in range(17)),
        413,
        "is larger than 16,777,216 bytes",
    ),
}


@pytest.mark.parametrize(("expanded", "status", "message"), BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("in_parts", [False, True])
async def test_a_bomb_is_not_decoded_to_its_end(
    deployment: Deployment, expanded: bytes, status: int, message: str, in_parts: bool
):
    packed = gzip.compress(expanded, 1)
    content = parts_of([packed[:100], packed[100:]]) if in_parts else packed
    response = await post(deployment, content, "gzip")
    assert (response.status_code, message in response.text) == (status, True), response.text
    assert deployment.calls() == []
