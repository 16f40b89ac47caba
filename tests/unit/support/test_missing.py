from __future__ import annotations

import pytest

from tests.support.missing import absent, missing, optional


class GoneError(Exception):
    pass


@pytest.mark.parametrize("ci", ["", "false"])
def test_elsewhere_what_is_missing_is_skipped(monkeypatch, ci):
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="no tool"):
        missing("no tool")
    with optional(GoneError):
        raise GoneError


def test_in_ci_what_is_missing_fails(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no tool"):
        missing("no tool")
    with pytest.raises(GoneError), optional(GoneError):
        raise GoneError


@pytest.mark.parametrize("ci", ["", "true"])
def test_what_only_the_machine_can_have_is_skipped_everywhere(monkeypatch, ci):
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="no kernel module"):
        absent("no kernel module")


def test_no_other_error_is_optional(monkeypatch):
    monkeypatch.setenv("CI", "")
    with pytest.raises(ValueError, match="other"), optional(GoneError):
        raise ValueError("other")
