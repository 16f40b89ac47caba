"""Certificates: what is refused and in which words, what is renewed and what is not. Over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import httpx2
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from adapters.security.handshake_errors import explain
from adapters.security.renewal import Identity, warn_if_not_valid
from adapters.security.tls import TlsError, client_context, read_pair, server_context
from tests.support.certificates import Authority, put
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.at(tmp_path_factory.mktemp("ca"))


def encrypted(key: bytes) -> bytes:
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f, ca: f.cert.unlink(), "certificate .* cannot be read: No such file"),
        (lambda f, ca: f.key.unlink(), "key .* cannot be read: No such file"),
        (lambda f, ca: put(f.cert, b"rubbish"), "is not a certificate in PEM format"),
        (lambda f, ca: put(f.cert, f.key.read_bytes()), "is not a certificate in PEM format"),
        (lambda f, ca: put(f.cert, b""), "is not a certificate in PEM format"),
        (lambda f, ca: put(f.key, b"rubbish"), "is not a private key in PEM format"),
        (lambda f, ca: put(f.key, f.cert.read_bytes()), "is not a private key in PEM format"),
        (
            lambda f, ca: put(f.key, encrypted(f.key.read_bytes())),
            "is encrypted, and Florin cannot ask for the passphrase",
        ),
        (lambda f, ca: put(f.key, ca.leaf().private_key_pem.bytes()), "does not belong to the certificate"),
        (lambda f, ca: f.key.chmod(0o640), "mode 0640, so others can read it: chmod 600"),
        (lambda f, ca: f.key.chmod(0o604), "mode 0604"),
        (lambda f, ca: put(f.key, b"x" * 100_000), "cannot be read: larger than"),
    ],
)
def test_a_pair_that_cannot_be_used_is_refused_in_words(ca: Authority, tmp_path, spoil, said):
    files = Authority(ca.ca, tmp_path / "ca.pem").issue("server")
    assert read_pair(files.cert, files.key).subject
    spoil(files, ca)
    with pytest.raises(TlsError, match=said) as raised:
        read_pair(files.cert, files.key)
    assert "BEGIN" not in str(raised.value)


def test_a_ca_that_is_none_is_refused_in_words(ca: Authority, tmp_path):
    files = ca.issue("of-ca-test")
    (tmp_path / "rubbish.pem").write_text("rubbish")
    for path, said in (
        (tmp_path / "rubbish.pem", "no CA certificate"),
        (tmp_path / "none.pem", "CA .* cannot be"),
    ):
        with pytest.raises(TlsError, match=said):
            client_context(path)
        with pytest.raises(TlsError, match=said):
            server_context(read_pair(files.cert, files.key), path)


def test_nothing_below_tls_1_2_is_spoken(ca: Authority):
    files = ca.issue("versions")
    for context in (server_context(read_pair(files.cert, files.key), None), client_context(ca.file)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@contextmanager
def echo(context: ssl.SSLContext | None, seen: list[str] | None = None) -> Iterator[int]:
    """Answers each line with itself, and each GET with 200. A thread for each connection, which closes it
    whatever happens. `seen`: serial numbers of the clients' certificates."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                connection = self.request
                if context:
                    connection = context.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    )
                    stack.enter_context(connection)
                    try:
                        connection.do_handshake()
                    except ssl.SSLError:  # what the client sends meanwhile must not reset our alert
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(4096):
                            pass
                        return
                    if seen is not None:
                        seen.append((connection.getpeercert() or {}).get("serialNumber", ""))
                else:  # as a server of plain HTTP answers a TLS greeting
                    connection.recv(1)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                    return
                with connection.makefile("rwb") as file:
                    while line := file.readline():
                        if line == b"\r\n":
                            file.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                            file.flush()
                            return
                        if b":" not in line and b"HTTP" not in line:
                            file.write(line)
                            file.flush()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = False
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def talking(port: int, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        yield secure


def shown(connection: ssl.SSLSocket) -> str:
    """Serial number of the server's certificate."""
    return connection.getpeercert()["serialNumber"]


def serial(port: int, context: ssl.SSLContext) -> str:
    with talking(port, context) as connection:
        return shown(connection)


def look(identity: Identity) -> bool:
    """As `watch` does. Whether a new pair was taken."""
    found = identity.read_changed(time.time())
    if found is not None:
        identity.use(found)
    return found is not None


def test_a_renewed_certificate_is_shown_to_new_connections_and_old_ones_stay(ca: Authority):
    files = ca.issue("renewed")
    identity = Identity("server", files.cert, files.key)
    trusting = client_context(ca.file)
    with echo(identity.server_context(None)) as port, talking(port, trusting) as old:
        assert not look(identity)
        files.put(ca.leaf(days=60))
        assert look(identity)
        assert identity.pair.not_after - time.time() > 59 * 86_400
        assert serial(port, trusting) != shown(old)
        old.sendall(b"still here\n")
        assert old.recv(100) == b"still here\n"
        assert not look(identity)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f, ca: put(f.cert, ca.leaf().cert_chain_pems[0].bytes()), "does not belong"),  # half replaced
        (lambda f, ca: put(f.key, b"rubbish"), "not a private key"),
        (lambda f, ca: f.cert.unlink(), "cannot be read"),
        (lambda f, ca: f.put(ca.leaf(days=-2)), "expired on"),
        (lambda f, ca: f.key.chmod(0o644), "mode 0644"),
    ],
)
def test_a_broken_renewal_keeps_the_old_one_until_it_is_whole(ca: Authority, tmp_path, caplog, spoil, said):
    files = Authority(ca.ca, tmp_path / "ca.pem").issue("broken")
    identity = Identity("server", files.cert, files.key)
    trusting = client_context(ca.file)
    with echo(identity.server_context(None)) as port:
        before = serial(port, trusting)
        spoil(files, ca)
        assert not look(identity)
        assert said in identity.trouble
        assert said in caplog.text
        assert serial(port, trusting) == before
        caplog.clear()
        assert not look(identity)
        assert not caplog.text  # said once
        files.put(ca.leaf())
        assert look(identity)
        assert identity.trouble == ""
        assert serial(port, trusting) != before


def test_a_client_certificate_is_renewed_too(ca: Authority):
    server, client = ca.issue("strict"), ca.issue("caller", "caller")
    identity = Identity("client", client.cert, client.key)
    context = identity.client_context(ca.file)
    seen: list[str] = []
    with echo(server_context(read_pair(server.cert, server.key), ca.file), seen) as port:
        for _ in range(2):
            with talking(port, context) as connection:
                connection.sendall(b"hello\n")
                assert connection.recv(100) == b"hello\n"
            client.put(ca.leaf("caller"))
            assert look(identity)
    assert len(set(seen)) == 2


def test_mounted_secrets_that_turn_a_link_are_noticed(ca: Authority, tmp_path):
    """As Kubernetes does it."""
    for name in ("one", "two"):
        place = Authority(ca.ca, tmp_path / name / "ca.pem")
        place.file.parent.mkdir()
        place.issue("tls")
    (tmp_path / "now").symlink_to("one")
    identity = Identity("server", tmp_path / "now" / "tls.pem", tmp_path / "now" / "tls.key")
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(tmp_path / "now")
    assert look(identity)


def get(url: str, context: ssl.SSLContext) -> int:
    with httpx2.Client(verify=context, trust_env=False, timeout=PATIENCE_S) as http:
        return http.get(url).status_code


async def failure(url: str, context: ssl.SSLContext) -> list[str]:
    """What the failure of each HTTP client means."""
    found = []
    try:
        await asyncio.to_thread(get, url, context)
    except httpx2.TransportError as error:
        found.append(explain(error))
    try:
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url):
            pass
    except aiohttp.ClientError as error:
        found.append(explain(error))
    return found


async def test_failed_handshakes_are_explained(ca: Authority, tmp_path):
    files, other = ca.issue("explained"), Authority.at(tmp_path, "other")
    pair = read_pair(files.cert, files.key)
    trusting = client_context(ca.file)
    with echo(server_context(pair, None)) as port:
        url = f"https://127.0.0.1:{port}/"
        said = await failure(url, client_context(other.file))
        assert len(said) == 2
        assert all(
            "certificate is not accepted: unable to get local issuer certificate" in one for one in said
        )
        said = await failure(f"https://127.0.0.2:{port}/", trusting)
        assert said == ["", ""]  # nobody listens there: that is not about TLS
        assert await asyncio.to_thread(get, url, trusting) == 200
    wrong = ca.issue("wrong", "elsewhere.test")
    with echo(server_context(read_pair(wrong.cert, wrong.key), None)) as port:
        said = await failure(f"https://127.0.0.1:{port}/", trusting)
        assert len(said) == 2
        assert all("certificate is not accepted: IP address mismatch" in one for one in said)
    with echo(None) as port:
        said = await failure(f"https://127.0.0.1:{port}/", trusting)
        assert said == ["it does not speak TLS; use http:// in the URL"] * 2
    with echo(server_context(pair, ca.file)) as port:
        said = await failure(f"https://127.0.0.1:{port}/", trusting)
        assert said == ["it requires a client certificate"] * 2
        files = other.issue("stranger", "stranger")
        stranger = client_context(ca.file, read_pair(files.cert, files.key))
        said = await failure(f"https://127.0.0.1:{port}/", stranger)
        assert len(said) == 2
        assert all("rejected the client certificate" in one for one in said)
    assert explain(ConnectionRefusedError()) == ""


@pytest.mark.parametrize(("after", "said"), [(-40, "not valid before"), (0, ""), (40, "EXPIRED on")])
def test_a_certificate_out_of_its_time_is_told_and_no_reason_not_to_start(ca: Authority, caplog, after, said):
    """`after`: days from now."""
    files = ca.issue("out-of-time")
    warn_if_not_valid(Identity("server", files.cert, files.key), lambda: time.time() + after * 86_400)
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)


def test_an_elliptic_and_an_rsa_key_are_both_taken(ca: Authority):
    issued = ca.ca.issue_cert("x.test", key_type=trustme.KeyType.RSA)
    files = ca.issue("rsa")
    files.put(issued)
    assert read_pair(files.cert, Path(files.key))
