"""A limit is added in three places: its definition, the data, and where it is enforced. All else follows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from gateway.commands.options import with_options
from gateway.console.forms import body_of, fields_of
from gateway.declarative.operations.json_schema import fleet_file_schema
from gateway.schemas.options import Option, options_of
from gateway.tenants.directory import Tenant
from gateway.tenants.operations.terms import updated
from gateway.tenants.schemas.terms import KeyTerms, LimitTerms, TenantTerms, in_words, section
from gateway.tenants.terms import Limits

GATEWAY = Path(__file__).parents[4] / "gateway"


class NewLimitTerms(LimitTerms):  # the first place
    images: Annotated[int | None, Option("Images per minute", clears=True)] = Field(
        None, ge=0, description="Images in requests."
    )


@dataclass(frozen=True, slots=True)
class NewLimits(Limits):  # the second; the third would enforce it
    images: int | None = None


class NewTerms(TenantTerms):
    limits: NewLimitTerms | None = None


def test_a_new_limit_has_its_option_its_field_its_words_and_its_effect():
    app, bodies = typer.Typer(), []

    @app.command()
    @with_options(NewTerms)
    def update(*, changes):
        bodies.append(changes)

    assert "--images" in CliRunner().invoke(app, ["--help"]).output
    CliRunner().invoke(app, ["--images", "2k"])
    assert bodies == [{"limits": {"images": 2000}}]

    tenant = replace(Tenant("acme", base_access=False, created=1), limits=NewLimits(concurrent=4))
    tenant = updated(tenant, NewTerms.model_validate(bodies[0]))
    assert tenant.limits == NewLimits(concurrent=4, images=2000)
    words = in_words(tenant.limits, section("limits", NewTerms))
    assert words == ["4 requests at a time", "2,000 images per minute"]

    form = {field.name: field for field in fields_of(NewTerms, section="limits", values=tenant)}
    assert (form["limits.images"].label, form["limits.images"].value) == ("Images per minute", "2000")
    body = body_of(NewTerms, lambda name: str(form[name].value or ""), section="limits")
    assert updated(tenant, NewTerms.model_validate(body)) == tenant


@pytest.mark.parametrize(
    ("limit", "enforced"),
    [
        ("max_context", "tenants/limits/needs.py"),
        ("max_output", "tenants/limits/needs.py"),
        ("uploads_per_hour", "fleet/adapters/operations/quotas.py"),
    ],
)
def test_a_limit_is_written_in_three_files(limit, enforced):
    files = {path for kind in ("*.py", "*.j2") for path in GATEWAY.rglob(kind)}
    naming = {str(f.relative_to(GATEWAY)) for f in files if re.search(rf"\b{limit}\b", f.read_text())}
    assert naming == {"tenants/schemas/terms.py", "tenants/terms.py", enforced}


@pytest.mark.parametrize("body", [TenantTerms, KeyTerms])
def test_every_term_that_people_set_is_an_option_and_part_of_fleet_files(body):
    fields = list(options_of(body))
    assert len({field.name for field in fields}) == len(fields)
    assert all(field.help and field.label for field in fields)
    kinds = fleet_file_schema()["$defs"]
    names = {name for kind in kinds.values() for name in kind.get("properties", ())}
    assert {field.path[-1] for field in fields} <= names
