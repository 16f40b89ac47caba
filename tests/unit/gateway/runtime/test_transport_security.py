"""What `florin serve` refuses of its TLS settings, in words that name them."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest

from gateway.app import create_app
from gateway.config import Settings, SettingsError
from gateway.runtime.transport_security import TransportSecurity
from tests.support.certificates import Authority, Files


@pytest.fixture
def pair(tmp_path: Path) -> Files:
    return Authority.at(tmp_path).issue("server")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (lambda f: {"tls_cert": f.cert}, "FLORIN_TLS_CERT, FLORIN_TLS_KEY: set both or neither"),
        (lambda f: {"tls_client_ca": f.cert}, "FLORIN_TLS_CLIENT_CA has no effect without FLORIN_TLS_CERT"),
        (
            lambda f: {"tls_cert": f.cert, "tls_key": f.key, "tls_client_ca": f.key},
            "FLORIN_TLS_CLIENT_CA: .* contains no CA certificate",
        ),
        (lambda f: {"engine_ca": f.key}, "FLORIN_ENGINE_CA.* contains no CA certificate"),
        (lambda f: {"engine_token_file": Path("/no")}, "FLORIN_ENGINE_TOKEN_FILE: the token file /no cannot"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(pair, settings, said):
    with pytest.raises(SettingsError, match=said):
        TransportSecurity(Settings(**settings(pair)))


def test_without_settings_there_is_nothing_to_renew():
    security = TransportSecurity(Settings())
    assert (security.server, security.identities, security.engines.ssl) == (None, (), True)


@pytest.mark.parametrize("wanted", [False, True])
async def test_the_apis_docs_are_there_only_if_asked_for(tmp_path, wanted):
    app = create_app(Settings(state_dir=tmp_path, api_docs=wanted))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://florin") as http:
        for path in ("/docs", "/docs/swagger-ui.css", "/openapi.json"):
            assert (await http.get(path)).status_code == (200 if wanted else 404)
        assert (await http.get("/redoc")).status_code == 404


async def test_the_apis_page_loads_nothing_from_elsewhere(tmp_path):
    app = create_app(Settings(state_dir=tmp_path, api_docs=True))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://florin") as http:
        page = await http.get("/docs")
        policy = page.headers["content-security-policy"]
        loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(loaded) == 4
        for url in loaded:
            assert url.startswith(("/docs/", "data:"))
            if url.startswith("/docs/"):
                found = [await http.get(url, headers={"accept-encoding": e}) for e in ("gzip", "identity")]
                assert [answer.status_code for answer in found] == [200, 200]
                assert found[0].content == found[1].content
        texts = (page.text, (await http.get("/docs/start.js")).text, policy)
        assert not any("//" in text or "unsafe" in text for text in texts)
        assert "<script>" not in page.text
        assert " style=" not in page.text
