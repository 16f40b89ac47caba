"""A field that a fleet file's author put in the wrong place is named once, with the one that was meant.

Source: a day of operations
Sent: a fleet file of fifty tenants with `requests_per_minute` beside `base_access` instead of below `limits`, an
engine's `maxRank`, and a key that is not there to be read; and the same field in the body of the API
Right: one mistake for all fifty, with every line, "did you mean limits.requests_per_minute?" and the allowed fields;
no gateway and no key is needed to find it
Why: "Extra inputs are not permitted", fifty times, says neither what is wrong nor what is right
"""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from gateway.commands.tree import tree
from gateway.tenants.schemas.terms import TenantTerms

TENANTS = "".join(f"  t{n}:\n    requests_per_minute: 60\n" for n in range(50))
FILE = f"""\
florin: 1
engines:
  a1: {{url: "http://10.0.0.7:8000", base: base, gpu_type: H200, slots: 4, max_rank: 8, maxRank: 16}}
keys:
  k1: {{tenant: t1, secret: {{env: A_VARIABLE_OF_ANOTHER_MACHINE}}}}
tenants:
{TENANTS}"""
MEANT = "unknown field; did you mean limits.requests_per_minute?"


def test_a_file_is_checked_without_a_gateway(tmp_path: Path):
    (tmp_path / "fleet.yaml").write_text(FILE)
    result = CliRunner().invoke(
        tree(), ["fleet-file", "check", str(tmp_path / "fleet.yaml"), "--json"], env={"FLORIN_URL": "-"}
    )
    assert result.exit_code == 1
    engine, tenants = json.loads(result.stdout)["findings"]
    assert (engine["line"], engine["path"]) == (3, "engines.a1.maxRank")
    assert engine["message"] == "unknown field; did you mean max_rank?"
    assert tenants["lines"] == list(range(8, 108, 2))
    assert tenants["message"].startswith(MEANT)
    assert tenants["expected"].split(", ") == list(TenantTerms.model_fields)


async def test_the_api_says_it_too(admin):
    fifty = {f"t{n}": {"requests_per_minute": 60} for n in range(50)}
    file = (await admin.post("apply", json={"florin": 1, "tenants": fifty})).json()["error"]
    assert len(file["findings"]) == 1
    assert MEANT in file["message"]
    tenant = (await admin.post("tenants", json={"name": "acme", "requests_per_minute": 60})).json()["error"]
    assert tenant["param"] == "requests_per_minute"
    assert tenant["message"].startswith(f"requests_per_minute: {MEANT} Fields here: base_access, ")
