from __future__ import annotations

import resource
import socket
import stat
import subprocess
import sys

import pytest

from gateway.config import Settings, SettingsError
from gateway.serving import server
from gateway.serving.runner import ServerStartError


def test_a_free_port_is_taken_for_0_and_named():
    with server.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert server.url_of(listener) == f"http://127.0.0.1:{port}"


def test_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=rf"Port {port} of 127\.0\.0\.1 is in use.*FLORIN_PORT"):
            server.bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a" * 300])
def test_foreign_host_address_is_reported(host):
    with pytest.raises(ServerStartError, match="FLORIN_HOST"):
        server.bind(host, 0)


def test_the_state_directory_is_made_for_its_owner_alone(tmp_path):
    server.make_state_dir(Settings(state_dir=tmp_path / "a" / "b"))
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"FLORIN_STATE_DIR.*file"):
        server.make_state_dir(Settings(state_dir=tmp_path / "file" / "x"))


def test_the_file_limit_is_raised_and_never_lowered():
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        server.raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@pytest.mark.parametrize("json_lines", [True, False])
def test_what_stops_a_start_is_said_in_the_logs_format(monkeypatch, capsys, caplog, json_lines):
    monkeypatch.setattr(server, "is_json", lambda: json_lines)
    assert server._report(ServerStartError("No room."), 1) == 1
    assert capsys.readouterr().err == ("" if json_lines else "florin: No room.\n")
    assert [r.message for r in caplog.records] == (["No room."] if json_lines else [])


def test_a_start_does_not_wait_for_what_few_gateways_ever_need():
    """Nor for what exports traces, as long as that is turned off: of OpenTelemetry, FastAPI imports what it finds."""
    slow = {
        "typer",
        "numpy",
        "cryptography.x509",
        "jinja2",
        "alembic",
        "valkey",
        "huggingface_hub",
        "obstore",
    }
    exporting = {"gateway.observability.span_export", "opentelemetry.exporter.otlp.proto.http"}
    script = "import sys, gateway.serving.server, gateway.app; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(imported.stdout.split())
    assert "gateway.observability.tracing" in loaded
    assert not loaded & (slow | exporting)
