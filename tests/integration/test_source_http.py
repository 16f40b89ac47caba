"""Adapters over HTTP, from servers that break, stall, lie, redirect and change: whole, or refused with the
reason; never to an address that was not to be reached, and never with a secret shown."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import logging
import socket
import ssl
from datetime import UTC, datetime, timedelta
from functools import partial

import aiohttp.connector
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from adapters.sources.options import FetchOptions
from tests.support.archives import CONFIG, WEIGHTS, tar_bytes, zip_bytes
from tests.support.fetching import Fetched, fetcher
from tests.support.hostile_http import hostile_server

OPTIONS = FetchOptions(
    max_bytes=8_000_000, allow_private=("127.0.0.1",), stall_seconds=5, attempts=3, pause_seconds=0.01
)


@pytest.fixture
def big(files):
    """An archive of some megabytes that do not compress away."""
    noise = b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(65536))
    return tar_bytes({**files, WEIGHTS: noise}, mode="w")


@pytest.fixture
def server():
    with hostile_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_netrc(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def fetch(tmp_path):
    return fetcher(tmp_path, OPTIONS)


def test_an_archive(server, fetch, files):
    for name, data in (
        ("a.tar.gz", tar_bytes(files)),
        ("a.zip", zip_bytes(files)),
        ("latest", tar_bytes(files)),
    ):
        server.handlers[f"/{name}"] = lambda r, data=data: r.answer(data)
        fetched = fetch(f"{server.url}/{name}?token=secret")
        assert fetched == Fetched([], files, f"{server.url}/{name}", "")
        assert server.requests[-1].path == f"/{name}?token=secret"


def test_a_directory_of_files(server, fetch, files):
    for name, content in files.items():
        server.handlers[f"/v1/{name}"] = lambda r, content=content: r.answer(content)
    server.handlers["/v1/tokenizer_config.json"] = lambda r: r.answer(b"{}")
    server.handlers["/v1/chat_template.jinja"] = lambda r: r.answer(status=403)
    fetched = fetch(f"{server.url}/v1/?sig=a%2Fb%3D")
    assert (fetched.codes, fetched.landed) == ([], {**files, "tokenizer_config.json": b"{}"})
    assert fetched.public == f"{server.url}/v1/"
    assert server.requests[0].path == f"/v1/{CONFIG}?sig=a%2Fb%3D"
    del server.handlers[f"/v1/{WEIGHTS}"]
    assert fetch(f"{server.url}/v1/").codes == ["source_missing"]


def test_download_resumes_after_a_broken_connection(server, fetch, big):
    cuts = [1_000_000, 1_500_000, None]
    server.handlers["/a.tar"] = lambda r: r.ranged(big, until=cuts[min(r.count, 2)], etag='"one"')
    told = []
    fetched = fetch(f"{server.url}/a.tar", progress=lambda *step: told.append(step))
    assert fetched.codes == []
    asked = [request.headers.get("range") for request in server.requests]
    assert asked == [None, "bytes=1000000-", "bytes=1500000-"]
    assert {request.headers.get("if-range") for request in server.requests[1:]} == {'"one"'}
    downloaded = [step for step in told if step[0] == "fetch"]
    assert downloaded[-1] == ("fetch", len(big), len(big))
    done = [done for _, done, _ in downloaded]
    assert done == sorted(done)


def test_a_time_of_change_serves_as_well(server, fetch, big):
    stamps = {"last_modified": "Mon, 06 Jul 2026 10:00:00 GMT", "date": "Mon, 06 Jul 2026 10:05:00 GMT"}

    def handle(r):
        if r.start:
            assert r.headers["if-range"] == stamps["last_modified"]
            span = f"bytes {r.start}-{len(big) - 1}/{len(big)}"
            r.head(206, content_length=len(big) - r.start, content_range=span, **stamps)
            r.send(big[r.start :])
        else:
            r.head(200, content_length=len(big), **stamps)
            r.send(big[:700_000])

    server.handlers["/a.tar"] = handle
    assert fetch(f"{server.url}/a.tar").codes == []
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"etag": 'W/"weak"'},
        {"last_modified": "Mon, 06 Jul 2026 10:00:00 GMT", "date": "Mon, 06 Jul 2026 10:00:01 GMT"},
        {"last_modified": "rubbish", "date": "rubbish"},
    ],
)
def test_without_a_strong_validator_it_begins_anew(server, fetch, big, headers):
    def handle(r):
        r.head(200, content_length=len(big), **headers)
        r.send(big if r.count else big[:1_000_000])

    server.handlers["/a.tar"] = handle
    assert fetch(f"{server.url}/a.tar").codes == []
    assert [request.headers.get("range") for request in server.requests] == [None, None]


@pytest.mark.parametrize("refusing", [False, True])
def test_a_server_that_ignores_or_refuses_ranges_begins_anew(server, fetch, big, refusing):
    def handle(r):
        if refusing and r.count == 1:
            r.answer(status=416)
            return
        r.head(200, content_length=len(big), etag='"one"')
        r.send(big if r.count else big[:1_000_000])

    server.handlers["/a.tar"] = handle
    told = []
    assert fetch(f"{server.url}/a.tar", progress=lambda *step: told.append(step)).codes == []
    assert [step for step in told if step[0] == "fetch"][-1] == ("fetch", len(big), len(big))


def test_what_was_replaced_between_two_ranges_is_never_mixed(server, fetch, files, big):
    other = tar_bytes({**files, WEIGHTS: bytes(reversed(range(256))) * 9000}, mode="w")

    def handle(r):
        if r.count == 0:
            r.ranged(big, until=1_000_000, etag='"one"')
        else:
            r.ranged(other, etag='"two"')

    server.handlers["/a.tar"] = handle
    fetched = fetch(f"{server.url}/a.tar")
    assert fetched.landed[WEIGHTS] == bytes(reversed(range(256))) * 9000


@pytest.mark.parametrize(
    "wrong",
    [
        {"etag": '"two"', "content_range": "bytes 1000000-{last}/{size}"},
        {"etag": '"one"', "content_range": "bytes 5-{last}/{size}"},
        {"etag": '"one"', "content_range": "bytes 1000000-{last}/99999999"},
        {"etag": '"one"', "content_range": "rubbish"},
        {"etag": '"one"'},
    ],
)
def test_a_wrong_part_is_not_taken(server, fetch, big, wrong):
    def handle(r):
        if r.count == 1:
            headers = {k: v.format(last=len(big) - 1, size=len(big)) for k, v in wrong.items()}
            r.head(206, content_length=len(big) - 1_000_000, **headers)
            r.send(bytes(len(big) - 1_000_000))
        else:
            r.ranged(big, until=None if r.count else 1_000_000, etag='"one"')

    server.handlers["/a.tar"] = handle
    fetched = fetch(f"{server.url}/a.tar")
    assert fetched.codes == []
    assert [request.headers.get("range") for request in server.requests] == [None, "bytes=1000000-", None]


def test_a_server_that_stalls_counts_as_broken(server, fetch, big):
    def handle(r):
        r.ranged(big, until=None if r.count else 1_000_000, etag='"one"')
        if not r.count:
            r.stall()

    server.handlers["/a.tar"] = handle
    assert fetch(f"{server.url}/a.tar", stall_seconds=0.5).codes == []
    assert server.requests[1].start == 1_000_000


def drip(r, pieces):
    for piece in pieces:
        if r.stopping.wait(0.05):
            return
        r.send(piece)


@pytest.mark.parametrize("when", ["never an answer", "in the head", "in the body"])
def test_a_slow_drip_ends(server, fetch, when):
    def handle(r):
        if when == "never an answer":
            r.stall()
        elif when == "in the head":
            r.send(b"HTTP/1.1 200 OK\r\n")
            drip(r, (f"x-{i}: y\r\n".encode() for i in range(1000)))
        else:
            r.head(200, content_length=1_000_000)
            drip(r, itertools.repeat(b"x"))

    server.handlers["/a.tar"] = handle
    fetched = fetch(f"{server.url}/a.tar", attempts=1, stall_seconds=0.5)
    assert fetched.codes == ["source_unavailable"]
    assert len(server.requests) >= 2


def test_stalled_download_can_be_aborted(server, fetch):
    class CancelledError(Exception):
        pass

    calls = itertools.count()

    def cancel(step, done, total):
        if next(calls) > 2:
            raise CancelledError

    server.handlers["/a.tar"] = lambda r: r.stall()
    with pytest.raises(CancelledError):
        fetch(f"{server.url}/a.tar", stall_seconds=60, progress=cancel)


def test_a_server_that_always_breaks_at_the_same_place_is_given_up(server, fetch, big):
    def handle(r):
        r.head(200, content_length=len(big))
        r.send(big[:500_000])

    server.handlers["/a.tar"] = handle
    fetched = fetch(f"{server.url}/a.tar")
    assert fetched.codes == ["source_unavailable"]
    assert "the connection was lost" in fetched.said
    assert len(server.requests) <= OPTIONS.attempts + 1


def test_a_server_that_gives_a_byte_at_a_time_is_given_up(server, fetch, big):
    server.handlers["/a.tar"] = lambda r: r.ranged(big, until=r.start + 1, etag='"one"')
    assert fetch(f"{server.url}/a.tar", attempts=1, pause_seconds=0).codes == ["source_unavailable"]
    assert len(server.requests) == 20


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_transient_errors(server, fetch, files, status):
    data = tar_bytes(files)
    server.handlers["/a"] = lambda r: r.answer(data) if r.count else r.answer(status=status, retry_after="0")
    assert fetch(f"{server.url}/a").codes == []


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (404, "source_missing"),
        (410, "source_missing"),
        (401, "source_denied"),
        (403, "source_denied"),
        (400, "source_unavailable"),
        (204, "source_unavailable"),
        (300, "source_unavailable"),
        (503, "source_unavailable"),
    ],
)
def test_permanent_errors(server, fetch, status, code):
    server.handlers["/a"] = lambda r: r.answer(b"" if status == 204 else b"no", status=status)
    assert fetch(f"{server.url}/a").codes == [code]
    assert len(server.requests) == (OPTIONS.attempts + 1 if status == 503 else 1)


def test_connection_refused(fetch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    fetched = fetch(f"http://127.0.0.1:{port}/a?sig=secret", attempts=1)
    assert fetched.codes == ["source_unavailable"]
    assert "secret" not in fetched.said


@pytest.mark.parametrize(
    "rubbish", [b"", b"\x00" * 100, b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 99999]
)
def test_server_without_http(server, fetch, rubbish):
    server.handlers["/a"] = lambda r: r.send(rubbish)
    assert fetch(f"{server.url}/a?sig=secret", attempts=1).codes == ["source_unavailable"]


def test_announced_size_exceeds_the_limit(server, fetch):
    server.handlers["/a"] = lambda r: r.head(200, content_length=10**12)
    fetched = fetch(f"{server.url}/a")
    assert fetched.codes == ["too_large"]
    assert len(server.requests) == 1


def test_actual_size_exceeds_the_limit(server, fetch, files):
    """Chunked, without a length; and a directory's file beyond its own limit."""

    def flood(r):
        r.head(200, transfer_encoding="chunked")
        piece = bytes(1 << 20)
        for _ in range(200):
            r.send(b"100000\r\n", piece, b"\r\n")

    server.handlers["/a"] = flood
    assert fetch(f"{server.url}/a", max_bytes=1000).codes == ["too_large"]
    server.handlers[f"/v/{CONFIG}"] = flood
    assert fetch(f"{server.url}/v/").codes == ["too_large"]
    server.handlers[f"/v/{CONFIG}"] = lambda r: r.answer(files[CONFIG])
    server.handlers[f"/v/{WEIGHTS}"] = lambda r: r.answer(bytes(len(files[WEIGHTS])))
    total = sum(map(len, files.values()))
    assert fetch(f"{server.url}/v/", max_bytes=total).codes == []
    assert fetch(f"{server.url}/v/", max_bytes=total - 1).codes == ["too_large"]


def test_chunked_without_a_length(server, fetch, files):
    data = tar_bytes(files)

    def handle(r):
        r.head(200, transfer_encoding="chunked")
        r.send(*(b"%x\r\n%s\r\n" % (len(p), p) for p in (data[:100], data[100:])))
        if r.count:
            r.send(b"0\r\n\r\n")

    server.handlers["/a"] = handle
    assert fetch(f"{server.url}/a").codes == []
    assert len(server.requests) == 2


def test_a_length_that_is_too_short_or_too_long(server, fetch, files):
    data = tar_bytes(files)

    def short(r):
        r.head(200, content_length=len(data) - 10)
        r.send(data)

    def long(r):
        r.head(200, content_length=len(data) + 10)
        r.send(data)

    server.handlers |= {"/short": short, "/long": long}
    # What is too much may come in one piece with the end, and then nothing of it is believed.
    assert fetch(f"{server.url}/short").codes in (["archive_corrupt"], ["source_unavailable"])
    assert fetch(f"{server.url}/long").codes == ["source_unavailable"]


def test_what_the_server_compresses_on_its_own_account(server, fetch, files):
    plain = tar_bytes(files, mode="w")
    server.handlers["/a.tar"] = lambda r: r.answer(gzip.compress(plain), content_encoding="gzip")
    assert fetch(f"{server.url}/a.tar").landed == files
    bomb = gzip.compress(bytes(1 << 27))
    server.handlers["/b.tar"] = lambda r: r.answer(bomb, content_encoding="gzip")
    assert fetch(f"{server.url}/b.tar").codes == ["archive_bomb"]
    server.handlers[f"/v/{CONFIG}"] = lambda r: r.answer(bomb, content_encoding="gzip")
    assert fetch(f"{server.url}/v/").codes == ["source_unavailable"]


def test_the_hash_of_an_archive(server, fetch, files):
    data = tar_bytes(files)
    server.handlers["/a"] = lambda r: r.answer(data)
    right = hashlib.sha256(data).hexdigest()
    fetched = fetch(f"{server.url}/a?x=y#sha256={right.upper()}")
    assert (fetched.codes, fetched.public) == ([], f"{server.url}/a#sha256={right.upper()}")
    assert fetch(f"{server.url}/a#sha256={'0' * 64}").codes == ["hash_mismatch"]
    for wrong in ("#sha256=12", "#md5=12", "#x"):
        assert fetch(f"{server.url}/a{wrong}").codes == ["source_unsupported"]


def test_wrong_content(server, fetch):
    server.handlers["/a"] = lambda r: r.answer(b"<!DOCTYPE html><title>Log in</title>")
    assert fetch(f"{server.url}/a").codes == ["archive_unsupported"]


def redirect(to: str, status: int = 302):
    return lambda r: r.answer(status=status, location=to)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects(server, fetch, files, status):
    data = tar_bytes(files)
    server.handlers |= {"/a": redirect("b/c?sig=x%2Fy", status), "/b/c": lambda r: r.answer(data)}
    assert fetch(f"{server.url}/a").codes == []
    assert server.requests[-1].path == "/b/c?sig=x%2Fy"


def test_redirects_that_are_not_followed(server, fetch):
    server.handlers["/loop"] = redirect("/loop")
    assert fetch(f"{server.url}/loop").codes == ["source_redirect"]
    assert len(server.requests) == 6
    for to in ("file:///etc/passwd", "ftp://h/x", "gopher://h/", "", "http://", "http://[::1", "data:,x"):
        server.handlers["/a"] = redirect(to)
        assert fetch(f"{server.url}/a").codes == ["source_redirect"], to
    for nameless in ("http://a..b/x", f"http://{'a' * 70}/x"):
        server.handlers["/a"] = redirect(nameless)
        assert fetch(f"{server.url}/a").codes == ["source_not_public"], nameless


PRIVATE = [
    "http://127.0.0.1:{port}/secret",
    "http://127.0.0.2:{port}/secret",
    "http://0.0.0.0:{port}/secret",
    "http://localhost:{port}/secret",
    "http://2130706433:{port}/secret",
    "http://0x7f000001:{port}/secret",
    "http://017700000001:{port}/secret",
    "http://127.1:{port}/secret",
    "http://[::1]:{port}/secret",
    "http://[::ffff:127.0.0.1]:{port}/secret",
    "http://[::ffff:7f00:1]:{port}/secret",
    "http://[::]:{port}/secret",
    "http://[64:ff9b::7f00:1]:{port}/secret",
    "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://100.100.100.200/latest/meta-data/",
    "http://10.0.0.1/",
    "http://192.168.0.1/",
    "http://[fe80::1%25lo]/x",
    "http://\uff11\uff12\uff17.0.0.1:{port}/secret",
    "http://user:pw@127.0.0.1:{port}/secret",
    "http://127.0.0.1.:{port}/secret",
]


def test_private_addresses_are_not_reached(server, fetch, subtests: pytest.Subtests):
    for where in PRIVATE:
        with subtests.test(where):
            fetched = fetch(where.format(port=server.port), allow_private=(), attempts=1)
            assert fetched.codes in (["source_not_public"], ["source_unavailable"])
            assert fetched.codes == ["source_not_public"] or where in PRIVATE[-4:-3]
            assert not server.requests


@pytest.mark.parametrize("where", PRIVATE[:1] + PRIVATE[8:9] + PRIVATE[13:14])
def test_redirects_to_private_addresses_are_refused(fetch, where):
    with hostile_server(host="127.0.0.9") as front, hostile_server() as inside:
        front.handlers["/a"] = redirect(where.format(port=inside.port))
        fetched = fetch(f"{front.url}/a", allow_private=("127.0.0.9",), attempts=1)
        assert fetched.codes
        assert set(fetched.codes) <= {"source_not_public", "source_redirect", "source_unavailable"}
        assert len(front.requests) == 1
        assert not inside.requests


def test_dns_rebinding_is_refused(fetch, files, monkeypatch):
    """DNS rebinding: each connection is made to an address that was itself looked at."""
    data, answers = tar_bytes(files, mode="w"), itertools.count()
    real = socket.getaddrinfo

    def rebinding(host, port, *args, **kwargs):
        if host == "rebinding.example":
            host = "127.0.0.9" if next(answers) == 0 else "127.0.0.1"
        return real(host, port, *args, **kwargs)

    with hostile_server(host="127.0.0.9") as front:
        front.handlers["/a"] = lambda r: r.ranged(data, until=None if r.count else 5000, etag='"one"')
        monkeypatch.setattr(socket, "getaddrinfo", rebinding)
        fetched = fetch(f"http://rebinding.example:{front.port}/a", allow_private=("127.0.0.9/32",))
        assert fetched.codes == ["source_not_public"]
        assert len(front.requests) == 1


@pytest.mark.parametrize("allowed", ["127.0.0.0/8", "127.0.0.1", "LOCALHOST", "localhost."])
def test_what_is_allowed_is_reached(server, fetch, files, allowed):
    data = tar_bytes(files)
    server.handlers["/a"] = lambda r: r.answer(data)
    host = "localhost" if "ocal" in allowed.lower() else "127.0.0.1"
    assert fetch(f"http://{host}:{server.port}/a", allow_private=(allowed,)).codes == []


def basic(request) -> str | None:
    return request.headers.get("authorization")


def test_credentials_go_to_their_own_host_alone(fetch, files, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    data = tar_bytes(files)
    with hostile_server() as front, hostile_server() as other:
        front.handlers["/a"] = redirect("/b")
        front.handlers["/b"] = redirect(f"http://you:too@127.0.0.1:{other.port}/c?sig=hush")
        other.handlers["/c"] = lambda r: r.answer(data)
        uri = f"http://me:p%40ss@127.0.0.1:{front.port}/a?token=hush"
        fetched = fetch(uri)
        assert fetched.codes == []
        assert fetched.public == f"{front.url}/a"
        assert [basic(r) for r in front.requests] == ["Basic bWU6cEBzcw=="] * 2
        assert [basic(r) for r in other.requests] == [None]
        other.handlers["/c"] = lambda r: r.answer(status=403)
        fetched = fetch(uri)
        assert fetched.codes == ["source_denied"]
        for secret in ("hush", "p%40ss", "p@ss", "bWU6", "too"):
            assert secret not in fetched.said
            assert secret not in caplog.text
        (tmp_path / "netrc").write_text(
            "machine 127.0.0.1 login me password pw\ndefault login x password y\n"
        )
        fetch(f"http://127.0.0.1:{front.port}/a")
        assert basic(front.requests[-1]) == "Basic bWU6cHc="
        fetch(f"http://localhost:{front.port}/a", allow_private=("localhost", "127.0.0.1"))
        assert basic(front.requests[-1]) is None


@pytest.mark.parametrize(
    "uri", ["http://", "http:///x", "http://h:bad/", "http://[::1/", "http:x", "https://#a"]
)
def test_invalid_url(fetch, uri):
    assert fetch(uri).codes == ["source_unsupported"]


def test_a_full_disk_is_said_before_the_download(server, fetch, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 70 * 1024 * 1024}))
    server.handlers["/a"] = lambda r: r.head(200, content_length=7_000_000)
    with pytest.raises(OSError, match="No space left"):
        fetch(f"{server.url}/a")


@pytest.fixture
def tls(tmp_path):
    """Wraps connections, with a certificate that nobody has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    both = tmp_path / "tls.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    both.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(both)
    return partial(context.wrap_socket, server_side=True)


def test_self_signed_certificate(fetch, tls):
    with hostile_server(wrap=tls) as server:
        fetched = fetch(f"https://localhost:{server.port}/a?sig=hush", allow_private=("localhost",))
        assert fetched.codes == ["source_unavailable"]
        assert "ertificate" in fetched.said
        assert "hush" not in fetched.said
        assert not server.requests


def test_from_https_to_http_no_redirect_is_followed(fetch, tls, files, monkeypatch):
    data = tar_bytes(files)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
    with hostile_server(wrap=tls) as front, hostile_server() as plain:
        plain.handlers["/a"] = lambda r: r.answer(data)
        front.handlers |= {"/a": redirect("/b"), "/b": lambda r: r.answer(data)}
        assert fetch(f"https://127.0.0.1:{front.port}/a").codes == []
        front.handlers["/b"] = redirect(f"{plain.url}/a")
        assert fetch(f"https://127.0.0.1:{front.port}/a").codes == ["source_redirect"]
        assert not plain.requests
        plain.handlers["/a"] = redirect(f"https://127.0.0.1:{front.port}/c")
        front.handlers["/c"] = lambda r: r.answer(data)
        assert fetch(f"{plain.url}/a").codes == []
