"""TLS on every connection of Florin's: real processes, real certificates, real handshakes."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path

import httpx2
import pytest
from openai import AsyncOpenAI, InternalServerError, OpenAIError

from adapters.engine_agent.gateway_client import GatewayClient, GatewayDownError
from adapters.security.tls import client_context, read_pair, server_context
from gateway.commands import gateway_tls
from gateway.commands.client import Api, UnreachableError, UsageError
from gateway.schemas.base import Answer, Listed
from gateway.tenants.schemas.tenants import Tenant
from loadtests.mock_engine import MockEngine
from tests.integration.test_cli import KEY, Served, florin, serving
from tests.support.certificates import Authority, Files, put
from tests.support.engine_hosts import add_version, ask, end, free_port, registered, start_agent
from tests.support.harness import fake_adapter, running_gateway
from tests.support.waiting import PATIENCE_S, until, until_now


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority.at(tmp_path / "pki")


def shown(url: str, ca: Authority) -> str:
    """Serial number of the certificate that a new connection is shown."""
    host, port = httpx2.URL(url).host, httpx2.URL(url).port
    with (
        socket.create_connection((host, port), timeout=PATIENCE_S) as plain,
        client_context(ca.file).wrap_socket(plain, server_hostname=host) as secure,
    ):
        return secure.getpeercert()["serialNumber"]


def metric(gateway: Served, ca: Authority, name: str) -> float:
    with httpx2.Client(verify=client_context(ca.file), trust_env=False) as http:
        text = http.get(f"{gateway.url}/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    [line] = [line for line in text.splitlines() if line.startswith(f'{name}{{certificate="server"}}')]
    return float(line.split()[-1])


@pytest.fixture
def pair(ca: Authority) -> Files:
    return ca.issue("gateway")


def test_the_gateway_speaks_tls_with_two_workers_and_renews_its_certificate(tmp_path, ca, pair, monkeypatch):
    env = {"FLORIN_TLS_CERT": str(pair.cert), "FLORIN_TLS_KEY": str(pair.key)}
    with serving(tmp_path / "state", **env, FLORIN_WORKERS="2") as gateway:
        assert gateway.url.startswith("https://")

        # Who trusts the CA gets in, by any of the ways to say so; who does not is told why.
        done = florin("tenant", "add", "acme", FLORIN_URL=gateway.url, FLORIN_CA_FILE=str(ca.file))
        assert done.returncode == 0, done.stderr
        done = florin("tenant", "list", FLORIN_URL=gateway.url)
        assert done.returncode == 3
        assert "its certificate is not accepted" in done.stderr
        assert "Set FLORIN_CA_FILE" in done.stderr
        monkeypatch.setenv("SSL_CERT_FILE", str(ca.file))
        assert Api.to(gateway.url, KEY).get("/admin/v1/tenants", Listed[Tenant]).data
        with pytest.raises(UnreachableError, match="must begin with https://"):
            Api.to(gateway.url.replace("https", "http"), KEY).get("/admin/v1/tenants", Listed[Tenant])
        monkeypatch.setenv("FLORIN_CA_FILE", str(tmp_path / "none.pem"))
        with pytest.raises(UsageError, match=r"FLORIN_CA_FILE: .*none\.pem cannot be read"):
            Api.to(gateway.url, KEY).get("/admin/v1/tenants", Listed[Tenant])

        # A new certificate reaches new connections to every worker, and no open one is dropped.
        first = shown(gateway.url, ca)
        with httpx2.Client(base_url=gateway.url, verify=client_context(ca.file), trust_env=False) as kept:
            for path in ("/healthz", "/admin/v1/tenants", "/console/sign-in", "/v1/models"):
                assert kept.get(path).headers["strict-transport-security"] == "max-age=31536000"
            [connection] = kept._transport._pool.connections
            pair.put(ca.leaf(days=60))
            until_now(lambda: all(shown(gateway.url, ca) != first for _ in range(8)))
            assert kept.get("/healthz").status_code == 200
            assert kept._transport._pool.connections == [connection]
        expiry = "florin_tls_certificate_expiry_timestamp_seconds"
        until_now(lambda: metric(gateway, ca, expiry) > time.time() + 59 * 86_400)

        # A broken one is not taken, and seen.
        second = shown(gateway.url, ca)
        assert metric(gateway, ca, "florin_tls_certificate_renewal_failing") == 0
        put(pair.key, b"rubbish")
        until_now(lambda: metric(gateway, ca, "florin_tls_certificate_renewal_failing") == 1)
        assert {shown(gateway.url, ca) for _ in range(4)} == {second}
        until_now(lambda: "Certificate server not reloaded" in gateway.errors.read_text())


def both(files: Files, cert: Path | None = None) -> dict[str, str]:
    return {"FLORIN_TLS_CERT": str(cert or files.cert), "FLORIN_TLS_KEY": str(files.key)}


# -- engines


@pytest.fixture
def engine_side(ca: Authority, tmp_path: Path) -> dict[str, Path]:
    """What a gateway needs for engines that want to know who calls."""
    files = ca.issue("caller", "florin")
    put(tmp_path / "token", b"engine-secret\n")
    return {
        "engine_ca": ca.file,
        "engine_cert": files.cert,
        "engine_key": files.key,
        "engine_token_file": tmp_path / "token",
    }


async def test_engines_behind_mutual_tls_and_a_key_are_probed_loaded_and_called(
    ca, engine_side, tmp_path, valkey_url, prefix
):
    files = ca.issue("engine")
    strict = server_context(read_pair(files.cert, files.key), ca.file)
    async with (
        MockEngine(tls=strict, api_key="engine-secret") as engine,
        running_gateway(tmp_path / "state", valkey_url, prefix, **engine_side) as gateway,
    ):
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        async with gateway.client("acme") as client:
            answer = await client.chat.completions.create(
                model="support", messages=[{"role": "user", "content": "x"}]
            )
            assert answer.choices[0].message.content
            stream = await client.chat.completions.create(
                model="support", messages=[{"role": "user", "content": "x"}], stream=True
            )
            assert len([event async for event in stream]) > 1
        assert [call.status for call in engine.state.admin if call.action == "load"] == [200]
        assert {call.headers["authorization"] for call in engine.state.calls} == {"Bearer engine-secret"}
        await until(lambda: gateway.state.pool.states()[0].healthy)

        # A token that is renewed on disk is sent without a restart.
        put(tmp_path / "token", b"another-secret")
        engine.api_key = "another-secret"
        async with asyncio.timeout(PATIENCE_S):
            async with gateway.client("acme") as client:
                while True:
                    try:
                        await client.chat.completions.create(
                            model="support", messages=[{"role": "user", "content": "x"}]
                        )
                        break
                    except OpenAIError:
                        await asyncio.sleep(0.1)
        assert engine.state.calls[-1].headers["authorization"] == "Bearer another-secret"


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ({"engine_ca"}, "its certificate is not accepted"),
        ({"engine_cert", "engine_key"}, "it may require a client certificate"),
        ({"engine_token_file"}, "401"),
    ],
    ids=["no CA", "no certificate", "no token"],
)
async def test_engines_that_reject_our_certificate_are_not_used(  # noqa: PLR0917  # fixtures
    ca, engine_side, tmp_path, valkey_url, prefix, without, said
):
    files = ca.issue("engine")
    strict = server_context(read_pair(files.cert, files.key), ca.file)
    known = {name: value for name, value in engine_side.items() if name not in without}
    async with (
        MockEngine(tls=strict, api_key="engine-secret") as engine,
        running_gateway(tmp_path / "state", valkey_url, prefix, **known) as gateway,
        gateway.http() as http,
    ):
        body = {"name": "a", "url": engine.url, "base": "base", "gpu_type": "h100", "slots": 2, "max_rank": 8}
        refused = await http.post("/admin/v1/engines", json=body)
        assert refused.status_code >= 400
        assert said in refused.text
        assert len(engine.state.calls) == 0


async def test_rejected_engine_token_is_not_a_client_error(tmp_path, valkey_url, prefix):
    async with (
        MockEngine() as good,
        MockEngine(api_key="another") as bad,
        running_gateway(tmp_path / "state", valkey_url, prefix, placement_timeout=1.0) as gateway,
    ):
        await gateway.add_engine("bad", bad.url)
        await gateway.add_tenant("acme", base_access=True)
        async with gateway.client("acme") as client:
            question = {"model": "base", "messages": [{"role": "user", "content": "x"}]}
            with pytest.raises(InternalServerError) as raised:
                await client.chat.completions.create(**question)
            assert raised.value.status_code == 503
            await gateway.add_engine("good", good.url)
            for _ in range(4):
                assert (await client.chat.completions.create(**question)).choices


async def test_no_redirect_to_plain_http(ca, engine_side, tmp_path, valkey_url, prefix):
    """An engine, or who sits in front of it, that points elsewhere is no engine."""
    asked: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    listener = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readline()).strip():
            pass
        writer.write(
            f"HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:{port}/\r\ncontent-length: 0\r\n\r\n".encode()
        )
        await writer.drain()
        writer.close()

    files = ca.issue("engine")
    secure = await asyncio.start_server(
        redirect, "127.0.0.1", 0, ssl=server_context(read_pair(files.cert, files.key), None)
    )
    async with listener, secure:
        async with running_gateway(tmp_path / "state", valkey_url, prefix, **engine_side) as gateway:
            url = f"https://127.0.0.1:{secure.sockets[0].getsockname()[1]}"
            await gateway.add_engine("a", url)
            await gateway.add_tenant("acme", base_access=True)
            await until(lambda: [state.healthy for state in gateway.state.pool.states()] == [False])
        secure.close()
        listener.close()
    assert asked == []


# -- hosts


async def test_a_host_runs_its_engine_behind_mutual_tls_and_stages_over_tls(
    ca, engine_side, tmp_path, valkey_url, prefix
):
    """The whole way of `florin engine run`: agent, its engine and the gateway know each other by certificates."""
    files = ca.issue("host")
    port = free_port()
    engine = (
        *(sys.executable, "-m", "loadtests.mock_engine.vllm", "serve", "/models/base"),
        *("--served-model-name", "base", "--port", str(port), "--max-loras", "2", "--max-cpu-loras", "8"),
        *("--max-lora-rank", "8", "--ssl-certfile", str(files.cert), "--ssl-keyfile", str(files.key)),
        *("--ssl-ca-certs", str(ca.file), "--ssl-cert-reqs", "2"),
    )
    env = {f"FLORIN_{name.upper()}": str(path) for name, path in engine_side.items()}
    env |= {
        "FLORIN_TLS_CERT": str(files.cert),
        "FLORIN_TLS_KEY": str(files.key),
        "FLORIN_TLS_CLIENT_CA": str(ca.file),
    }
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **engine_side) as gateway:
        await gateway.add_tenant("acme")
        agent = await start_agent(
            gateway, "h1", tmp_path / "cache", port, ("--gpu-type", "H100"), engine,
            VLLM_API_KEY="engine-secret", **env,
        )  # fmt: skip
        try:
            agent.tls = True
            found = await registered(gateway, agent)
            assert found.url == f"https://127.0.0.1:{port}"
            assert found.agent.startswith("https://127.0.0.1:")
            version = await add_version(gateway, "acme/support")
            answer = await ask(gateway)
            assert answer.choices[0].message.content
            assert (agent.home / version.digest.removeprefix("sha256:")).is_dir()
            assert agent.home.stat().st_mode & 0o077 == 0
            with pytest.raises(httpx2.HTTPError):  # who shows no certificate is not even told its health
                await asyncio.to_thread(
                    httpx2.get, f"{found.agent}/health", verify=client_context(ca.file), trust_env=False
                )
        finally:
            code = await agent.stop()
            await end(agent)
    assert code == 0


async def test_client_certificate_is_required_if_configured(ca, pair, tmp_path, monkeypatch):
    """The command line, the OpenAI client, an agent's link; and who has none is told what is missing."""
    caller = ca.issue("caller", "operator")
    env = {**both(pair), "FLORIN_TLS_CLIENT_CA": str(ca.file)}
    monkeypatch.setenv("FLORIN_CA_FILE", str(ca.file))
    async with MockEngine() as engine:
        with serving(tmp_path / "state", **env) as gateway:
            api = Api.to(gateway.url, KEY)
            with pytest.raises(UnreachableError, match="FLORIN_CLIENT_CERT"):
                await asyncio.to_thread(api.get, "/admin/v1/tenants", Listed[Tenant])
            async with GatewayClient(gateway.url, KEY, tls=gateway_tls.trust(gateway.url)) as link:
                with pytest.raises(GatewayDownError, match="FLORIN_CLIENT_CERT"):
                    await link.engine("a")
            monkeypatch.setenv("FLORIN_CLIENT_CERT", str(caller.cert))
            with pytest.raises(
                UsageError, match="FLORIN_CLIENT_CERT, FLORIN_CLIENT_KEY: set both or neither"
            ):
                await asyncio.to_thread(api.get, "/admin/v1/tenants", Listed[Tenant])
            monkeypatch.setenv("FLORIN_CLIENT_KEY", str(caller.key))
            trusted = gateway_tls.trust(gateway.url, gateway_tls.identity())
            async with GatewayClient(gateway.url, KEY, tls=trusted) as link:
                assert await link.engine("a") is None

            def say(path: str, **body: object) -> dict:
                return api.post(f"/admin/v1/{path}", body, Answer).body

            await asyncio.to_thread(say, "tenants", name="acme", base_access=True)
            key = (await asyncio.to_thread(say, "keys", tenant="acme"))["key"]
            fields = {"base": "base", "gpu_type": "H100", "slots": 2, "max_rank": 8}
            await asyncio.to_thread(lambda: say("engines", name="a1", url=engine.url, **fields))
            context = client_context(ca.file, read_pair(caller.cert, caller.key))
            async with (
                httpx2.AsyncClient(verify=context, trust_env=False) as http,
                AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, http_client=http) as client,
            ):
                answer = await client.chat.completions.create(
                    model="base", messages=[{"role": "user", "content": "x"}]
                )
                assert answer.choices[0].message.content


async def test_the_certificate_shown_to_engines_is_changed_under_streams_and_no_request_fails(
    ca, tmp_path, valkey_url, prefix
):
    """It moves to another CA, which the second engine alone trusts: who is connected to the first stays so."""
    another = Authority.at(tmp_path / "another")
    (tmp_path / "both.pem").write_bytes(ca.file.read_bytes() + another.file.read_bytes())
    put(tmp_path / "token", b"engine-secret")
    ours, pair = ca.issue("caller", "florin"), ca.issue("engine")
    first, second = (
        server_context(read_pair(pair.cert, pair.key), trust)
        for trust in (tmp_path / "both.pem", another.file)
    )
    side = {"engine_ca": ca.file, "engine_cert": ours.cert, "engine_key": ours.key}
    question = {"model": "base", "messages": [{"role": "user", "content": "x"}]}
    async with (
        MockEngine(tls=first, api_key="engine-secret", answer_tokens=400) as a,
        MockEngine(tls=second, api_key="engine-secret") as b,
        running_gateway(
            tmp_path / "state", valkey_url, prefix, **side, engine_token_file=tmp_path / "token"
        ) as gateway,
        gateway.http() as http,
    ):
        body = {"base": "base", "gpu_type": "h100", "slots": 2, "max_rank": 8}
        assert (await http.post("/admin/v1/engines", json={"name": "a", "url": a.url, **body})).is_success
        await gateway.add_tenant("acme", base_access=True)
        async with gateway.client("acme") as client:
            a.faults.event_delay = 0.2
            streams = [await client.chat.completions.create(**question, stream=True) for _ in range(4)]
            refused = await http.post("/admin/v1/engines", json={"name": "b", "url": b.url, **body})
            assert "may require a client certificate" in refused.text
            ours.put(another.leaf("florin"))
            [identity] = [i for i in gateway.state.security.identities if i.name == "engine client"]
            before, answered = identity.pair, 0
            while identity.pair is before:  # requests go on meanwhile
                answered += bool(
                    (await client.chat.completions.create(**question | {"max_tokens": 1})).choices
                )
            assert (await http.post("/admin/v1/engines", json={"name": "b", "url": b.url, **body})).is_success
            assert answered
            assert sum(a.state.running.values()) == len(streams)
            a.faults.event_delay = 0.0
            for stream in streams:
                *_, last = [event async for event in stream]
                assert last.choices[0].finish_reason == "stop"
