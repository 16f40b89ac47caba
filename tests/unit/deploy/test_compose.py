"""compose.yaml: its variables are read, its files exist, and its times fit Florin's. No container runs here."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gateway.commands.tree import loaded_tree
from gateway.config import Settings
from gateway.runtime.unknown_variables import unknown

FILE = Path("deploy/compose/compose.yaml")
SERVICES = yaml.safe_load(FILE.read_text())["services"]
CREATED = {"./secrets"}
"""Paths that the operator creates."""


def test_the_variables_are_read():
    names = [name for service in SERVICES.values() for name in service.get("environment", {})]
    assert len(names) > 5
    assert not list(unknown(names))
    assert not list(unknown(re.findall(r"\$\{(FLORIN_\w+)", FILE.read_text())))


def test_each_file_and_volume_exists():
    volumes = yaml.safe_load(FILE.read_text())["volumes"]
    for service in SERVICES.values():
        for mounted in service.get("volumes", ()):
            source = mounted.partition(":")[0]
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
    words = SERVICES["engine-cpu"]["command"]
    options = {name for p in loaded_tree().commands["engine"].commands["run"].params for name in p.opts}
    assert {word for word in words[: words.index("--")] if word.startswith("--")} <= options


def test_prometheus_reads_the_rules_and_a_key_that_are_mounted():
    read = yaml.safe_load((FILE.parent / "prometheus.yml").read_text())
    mounted = [volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]]
    assert f"/etc/prometheus/{read['rule_files'][0]}" in mounted
    [job] = read["scrape_configs"]
    assert job["authorization"]["credentials_file"].startswith("/etc/prometheus/secrets/")
    assert job["static_configs"] == [{"targets": ["gateway:8080"]}]


def test_grafana_finds_the_dashboards_and_the_source():
    folder = FILE.parent / "grafana" / "provisioning"
    [provider] = yaml.safe_load((folder / "dashboards" / "florin.yaml").read_text())["providers"]
    assert f"../grafana:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    [source] = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
