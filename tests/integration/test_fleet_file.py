"""`florin apply` and `florin export` as people run them: real processes, the embedded Valkey, a mock engine."""

from __future__ import annotations

import jsonschema_rs
import openai
import pytest

from gateway.declarative.commands import fleet_file
from gateway.declarative.operations.json_schema import fleet_file_schema
from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import florin, serving
from tests.support.lora import lora_config, write_adapter

SECRET = "a-key-that-openssl-rand-made-0123456789"
FLEET = """\
florin: 1

engines:
  a1:
    url: {url}
    base: base
    gpu_type: H200
    slots: 4
    max_rank: 16

tenants:
  acme: {{base_access: true}}
  bolt: {{}}

keys:
  acme-production:
    tenant: acme
    secret: {{env: ACME_KEY}}

adapters:
  acme/support:
    versions:
      - {{version: v1, source: {files}/one}}
      - {{version: v2, source: {files}/two}}
    live: v1
    canary: {{version: v2, weight: 10, guard: {{action: hold, then: [50, 100]}}}}
    pinned: true
    shared_with: [bolt]

prices:
  - {{gpu_type: H200, rate_per_gpu_hour: 2.50}}
"""


@pytest.fixture
def engine(model):
    with MockProcess(root=str(model), max_loras=4) as running:
        yield running


def test_a_fleet_is_written_applied_exported_and_restored(tmp_path, engine):
    for fill, name in enumerate(("one", "two"), 1):
        write_adapter(tmp_path / name, config=lora_config(base_model_name_or_path="base"), fill=fill)
    (tmp_path / "fleet.yaml").write_text(FLEET.format(url=engine.url, files=tmp_path))
    shared = {"FLORIN_ARTIFACT_DIR": str(tmp_path / "artifacts")}
    apply = ("apply", "-f", str(tmp_path / "fleet.yaml"))
    with serving(tmp_path / "first", **shared) as gateway:
        with_key = {"FLORIN_URL": gateway.url, "ACME_KEY": SECRET}
        planned = florin(*apply, "--dry-run", **with_key)
        assert planned.returncode == 4, planned.stderr
        assert "6 to create, 0 to change, 0 to remove, 0 unchanged." in planned.stdout
        assert "secret: sha256:" in planned.stdout
        done = florin(*apply, **with_key)
        assert done.returncode == 0, done.stdout + done.stderr
        again = florin(*apply, "--dry-run", "--prune", **with_key)
        assert again.returncode == 0, again.stdout
        assert "Nothing to do" in again.stdout
        exported = gateway.florin("export")
        assert exported.returncode == 0, exported.stderr
        jsonschema_rs.validate(fleet_file_schema(), fleet_file.load(exported.stdout))
        assert SECRET not in exported.stdout + done.stdout + gateway.errors.read_text()
        assert gateway.florin("export", "--output", str(tmp_path / "export.yaml")).returncode == 0
        assert (tmp_path / "export.yaml").read_text() == exported.stdout
    with serving(tmp_path / "second", **shared) as gateway:
        restored = gateway.florin("apply", "-f", str(tmp_path / "export.yaml"))
        assert restored.returncode == 0, restored.stdout
        assert gateway.florin("export").stdout == exported.stdout
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=SECRET, max_retries=0) as client:
            said = client.chat.completions.with_raw_response.create(
                model="support@v2", messages=[{"role": "user", "content": "hi"}]
            )
            assert said.headers["x-florin-adapter"] == "acme/support@v2"
