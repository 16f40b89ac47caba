"""florin fleet-file …: no gateway is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.declarative.operations.json_schema import fleet_file_schema

VALID = """\
florin: 1
tenants:
  acme: {}
adapters:
  corgi/x:
    versions: [{version: v1, source: /x}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.yaml"


def test_a_valid_file_says_what_it_needs_of_the_installation(fake, file: Path):
    file.write_text(VALID)
    result = fake.florin("fleet-file", "check", str(file))
    assert result.exit_code == 0
    assert result.stdout == f"{file} is valid: tenants 1, adapters 1.\n"
    assert "would refuse adapter corgi/x: There is no tenant 'corgi'" in result.stderr
    assert fake.asked == []


def test_a_key_in_the_clear_is_refused_and_never_shown(fake, file: Path):
    file.write_text("florin: 1\nkeys:\n  k1:\n    tenant: acme\n    secret: fl_7Ab\n")
    result = fake.florin("fleet-file", "check", str(file))
    assert result.exit_code == 1
    assert f"{file}:5: keys.k1.secret: must be `sha256:…`" in result.stdout
    assert "fl_7Ab" not in result.output


def test_a_missing_field_has_the_line_of_what_lacks_it(fake, file: Path):
    file.write_text("florin: 1\nadapters:\n  acme/x:\n    versions:\n      - version: v1\n")
    (finding,) = json.loads(fake.florin("fleet-file", "check", str(file), "--json").stdout)["findings"]
    assert (finding["line"], finding["path"]) == (5, "adapters.acme/x.versions[0].source")


def test_the_schema_is_printed_as_it_is(fake):
    assert json.loads(fake.florin("fleet-file", "schema").stdout) == fleet_file_schema()
