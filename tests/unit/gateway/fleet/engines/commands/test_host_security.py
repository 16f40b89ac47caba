"""What a GPU host's agent takes from its environment, and what it refuses before anything starts."""

from __future__ import annotations

import pytest

from adapters.engine_agent import engine_flags
from gateway.commands.client import UsageError
from gateway.fleet.engines.commands import host_security
from tests.support.certificates import Authority, put

SERVE = ("vllm", "serve", "/models/base")
TLS = ("--ssl-certfile", "c.pem", "--ssl-keyfile", "k.pem")
MUTUAL = (*TLS, "--ssl-ca-certs", "ca.pem", "--ssl-cert-reqs", "2")


def of(*words: str, advertise: str | None = None, url: str = "http://127.0.0.1:1", **environ: str):
    launch = engine_flags.plan((*SERVE, *words), environ, host="127.0.0.1")
    return host_security.of(launch, advertise, api_url=url, environ=environ)


def test_without_anything_it_is_plain_and_warns_where_others_listen(caplog):
    found = of()
    assert (found.host.server, found.gateway, found.engine_headers) == (None, None, {})
    assert found.host.engine.ssl is True
    found.warn("127.0.0.1")
    assert not caplog.text
    found.warn("10.0.0.7")
    assert "The agent speaks plain HTTP on 10.0.0.7" in caplog.text
    caplog.clear()
    of(FLORIN_BEHIND_PROXY="true").warn("10.0.0.7")
    assert not caplog.text


def test_an_engines_key_is_the_agents_too():
    assert of("--api-key", "k1").engine_headers == {"authorization": "Bearer k1"}
    assert of(VLLM_API_KEY="k2").engine_headers == {"authorization": "Bearer k2"}


@pytest.mark.parametrize(
    ("words", "advertise", "environ", "said"),
    [
        (TLS, "http://10.0.0.7:8000", {}, "must begin with https://"),
        (MUTUAL, None, {}, "set FLORIN_ENGINE_CERT and FLORIN_ENGINE_KEY"),
        ((), None, {"FLORIN_TLS_CERT": "/c"}, "FLORIN_TLS_CERT, FLORIN_TLS_KEY: set both or neither"),
        ((), None, {"FLORIN_CLIENT_KEY": "/k"}, "FLORIN_CLIENT_CERT, FLORIN_CLIENT_KEY: set both or neither"),
        ((), None, {"FLORIN_TLS_CLIENT_CA": "/ca"}, "FLORIN_TLS_CLIENT_CA requires FLORIN_TLS_CERT and"),
        ((), None, {"FLORIN_ENGINE_TOKEN_FILE": "/nowhere"}, "token file /nowhere cannot be read"),
        ((), None, {"FLORIN_ENGINE_CA": "/nowhere"}, "CA /nowhere cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(words, advertise, environ, said):
    with pytest.raises(UsageError, match=said):
        of(*words, advertise=advertise, **environ)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("schlüssel".encode(), 0o600, "contains no token"),
        (b"a\r\nb: c", 0o600, "contains no token"),
        (b"x" * 5000, 0o600, "larger than"),
        (b"secret", 0o644, "mode 0644"),
    ],
)
def test_a_token_file_that_holds_none_is_refused_and_not_repeated(tmp_path, content, mode, said):
    put(tmp_path / "token", content)
    (tmp_path / "token").chmod(mode)
    with pytest.raises(UsageError, match=said) as raised:
        of(FLORIN_ENGINE_TOKEN_FILE=str(tmp_path / "token"))
    assert "secret" not in str(raised.value)


def test_all_of_it_together_is_renewed(tmp_path):
    ca = Authority.at(tmp_path)
    files = ca.issue("host")
    put(tmp_path / "token", b"secret\n")
    both = {"CERT": str(files.cert), "KEY": str(files.key)}
    environ = {
        f"FLORIN_{kind}_{name}": path for kind in ("TLS", "ENGINE", "CLIENT") for name, path in both.items()
    }
    environ |= {"FLORIN_ENGINE_TOKEN_FILE": str(tmp_path / "token"), "FLORIN_CA_FILE": str(ca.file)}
    found = of(*MUTUAL, url="https://gateway:8080", **environ)
    assert found.host.server
    assert found.gateway
    assert len(found.host.renewables) == 4  # the desk's, the gateway's, the engine's, and the token
