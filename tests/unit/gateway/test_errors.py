"""Every error has a code, and every code is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapters import errors
from adapters.errors import AdaptersError, Finding, NotFoundError, RejectedError
from gateway.errors import CODES, FlorinError, for_tenant, translate

ROOT = Path(__file__).parents[3]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AdaptersError)]


def made(kind: type[AdaptersError]) -> AdaptersError:
    finding = Finding("not_lora", "It is no LoRA adapter.", "x", "y")
    return RejectedError("acme/x", (finding,)) if kind is RejectedError else kind("It failed.")


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_of_adapters_has_a_code_of_its_own_or_of_its_base(kind: type[AdaptersError]):
    for told in (translate(made(kind)), for_tenant(made(kind))):
        assert (told.code == "internal_error") == (kind is AdaptersError), (
            f"{kind.__name__} is a bug in Florin to callers: give it a code in gateway/errors/from_adapters.py"
        )


def test_an_error_that_is_not_in_the_table_has_the_code_of_its_base():
    class NoSuchRevisionError(NotFoundError):
        pass

    assert translate(NoSuchRevisionError("There is no v7.")).code == "not_found"


def test_every_code_is_used():
    sources = [path for side in ("adapters", "gateway") for path in (ROOT / side).rglob("*.py")]
    text = "".join(path.read_text() for path in sources)
    unused = [code for code in CODES if not re.search(rf'"{code}"(?!: Code\()', text)]
    assert not unused, f"nothing raises {unused}"


def test_who_is_not_authenticated_is_told_how_to_be():
    assert FlorinError("invalid_api_key", "No.").headers == {"www-authenticate": "Bearer"}
    assert FlorinError("insufficient_role", "No.").headers == {}
