"""compose.yaml: its variables are read, its files exist, its times fit Florin's, and its certificates are accepted.

No container runs here: docs/deployment/compose.md says how it was tried.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from gateway.commands.tree import loaded_tree
from gateway.config import Settings
from gateway.runtime.unknown_variables import unknown
from tests.support.missing import absent

FILE = Path("deploy/compose/compose.yaml")
SERVICES = yaml.safe_load(FILE.read_text())["services"]
CREATED = {"./secrets", "${MODELS:-models}"}
"""Paths that the operator creates or names."""


def test_the_variables_are_read():
    names = [name for service in SERVICES.values() for name in service.get("environment", {})]
    assert len(names) > 5
    assert not list(unknown(names))
    assert not list(unknown(re.findall(r"\$\{(FLORIN_\w+)", FILE.read_text())))


def test_each_file_and_volume_exists():
    volumes = yaml.safe_load(FILE.read_text())["volumes"]
    for service in SERVICES.values():
        for mounted in service.get("volumes", ()):
            source = mounted.rpartition("}")[0] + "}" if "{" in mounted else mounted.partition(":")[0]
            assert source in volumes or source in CREATED or (FILE.parent / source).exists(), mounted
        if build := service.get("build"):
            assert (FILE.parent / build["context"] / build["dockerfile"]).is_file()
        assert set(service.get("depends_on", ())) <= SERVICES.keys()


def test_the_gateway_is_stopped_no_sooner_than_it_needs():
    fields = Settings.model_fields
    needed = fields["lame_duck"].default + fields["shutdown_grace"].default
    assert int(SERVICES["gateway"]["stop_grace_period"].removesuffix("s")) > needed
    drain = next(
        p for p in loaded_tree().commands["engine"].commands["run"].params if p.name == "drain_timeout"
    )
    assert int(SERVICES["engine-cpu"]["stop_grace_period"].removesuffix("s")) >= drain.default + 30


def test_the_engine_s_options_exist():
    assert SERVICES["engine-cpu"]["entrypoint"] == ["/bin/sh", "-c"], "which splits VLLM_ARGS"
    [line] = SERVICES["engine-cpu"]["command"]
    words = shlex.split(line.removeprefix("set -f; exec florin engine run "))
    assert words[-1] == "$$VLLM_ARGS"
    options = {name for p in loaded_tree().commands["engine"].commands["run"].params for name in p.opts}
    assert {word for word in words[: words.index("--")] if word.startswith("--")} <= options


def test_prometheus_reads_the_rules_and_a_key_that_are_mounted():
    read = yaml.safe_load((FILE.parent / "prometheus.yml").read_text())
    mounted = [volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]]
    assert f"/etc/prometheus/{read['rule_files'][0]}" in mounted
    [job] = read["scrape_configs"]
    assert job["authorization"]["credentials_file"].startswith("/etc/prometheus/secrets/")
    assert job["static_configs"] == [{"targets": ["gateway:8080"]}]
    assert job["scheme"] == "https"
    assert job["tls_config"]["ca_file"] in [
        v.split(":")[1] + "/ca.pem" for v in SERVICES["prometheus"]["volumes"]
    ]


@pytest.fixture
def certificates(tmp_path):
    """A function that runs the script in a directory of its own, which it returns."""
    if shutil.which("openssl") is None:
        absent("openssl is not installed: apt-get install openssl")
    made = tmp_path / "tls"
    made.mkdir()
    user = {"GATEWAY_UID": str(os.getuid()), "ENGINE_UID": str(os.getuid())}

    def run(**variables: str) -> Path:
        script = ["sh", str(FILE.parent / "certificates.sh"), str(made)]
        subprocess.run(script, check=True, capture_output=True, timeout=60, env=os.environ | user | variables)
        return made

    return run


def test_the_gateway_s_certificate_is_for_the_names_that_it_is_called_by(certificates):
    made = certificates(GATEWAY_NAMES="DNS:florin.example.com")
    read = x509.load_pem_x509_certificate((made / "gateway.pem").read_bytes())
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gateway", "localhost", "florin.example.com"]
    environments = [SERVICES[name]["environment"] for name in ("gateway", "engine-cpu")]
    assert all(
        env["FLORIN_URL"].split("/")[2].split(":")[0] in {"gateway", "localhost"} for env in environments
    )


def test_gateway_and_engine_accept_each_other_s_certificates(certificates):
    """With the checks of Python 3.13, which newer engines have: VERIFY_X509_STRICT."""
    made = certificates()
    sides = []
    for name, purpose in (("engine", ssl.Purpose.CLIENT_AUTH), ("gateway", ssl.Purpose.SERVER_AUTH)):
        context = ssl.create_default_context(purpose, cafile=made / "ca.pem")
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(made / f"{name}.pem", made / f"{name}.key")
        to, back = (ssl.MemoryBIO(), ssl.MemoryBIO()) if not sides else (sides[0][2], sides[0][1])
        server = purpose is ssl.Purpose.CLIENT_AUTH
        wrapped = context.wrap_bio(
            to, back, server_side=server, server_hostname=None if server else "engine-cpu"
        )
        sides.append((wrapped, to, back))
    for _ in range(3):
        for side, _, _ in reversed(sides):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert [side.getpeercert()["subject"][0][0][1] for side, _, _ in sides] == ["gateway", "engine"]
    assert all((made / f"{name}.key").stat().st_mode & 0o77 == 0 for name in ("ca", "gateway", "engine"))


def test_certificates_are_kept_until_they_are_nearly_over(certificates):
    made = certificates()
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    assert before.keys() == {"ca.pem", "ca.key", "gateway.pem", "gateway.key", "engine.pem", "engine.key"}
    certificates()
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    (made / "engine.pem").write_bytes(b"")  # as good as over
    certificates()
    changed = {name for name, old in before.items() if (made / name).read_bytes() != old}
    assert changed == {"engine.pem", "engine.key"}


def test_no_secret_reaches_the_images_or_the_repository():
    ignored = [line.strip() for line in (FILE.parent / ".gitignore").read_text().splitlines()]
    assert "secrets/" in ignored
    for file in Path("deploy/images").glob("*.dockerignore"):
        assert "deploy/compose/secrets" in file.read_text().splitlines()


def test_engines_reach_neither_redis_nor_the_ledger():
    reached = {name: set(service.get("networks", ["default"])) for name, service in SERVICES.items()}
    assert reached["valkey"] == reached["postgres"] == {"data"}
    assert [name for name, networks in reached.items() if "data" in networks] == [
        "gateway",
        "valkey",
        "postgres",
    ]


def test_grafana_finds_the_dashboards_and_the_source():
    folder = FILE.parent / "grafana" / "provisioning"
    [provider] = yaml.safe_load((folder / "dashboards" / "florin.yaml").read_text())["providers"]
    assert f"../grafana:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    [source] = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
