"""Of a price that may be a slip, commands ask on a terminal, and need --yes in scripts."""

from __future__ import annotations

import pytest

from gateway.commands import session
from gateway.costs.prices.schemas import AddedPrice
from gateway.declarative.schemas import Action, Applied
from tests.support.samples import sample

PATH = "/admin/v1/prices"
DOUBT = "A GPU-hour of H100 would be 25.00 instead of 2.50."
ERROR = {"message": DOUBT, "type": "conflict_error", "param": None, "code": "confirmation_required"}
ADD = ("price", "add", "--gpu-type", "H100", "--rate", "25.0")
ADDED = sample(AddedPrice, gpu_type="H100", rate_per_gpu_hour="25.00")
FAILED = sample(Action, action="refuse", kind="price", outcome="failed", error=ERROR)


def applied(*actions: dict) -> dict:
    return sample(Applied, failed=len(actions), actions=actions)


@pytest.fixture
def doubtful(fake):
    fake.answer("POST", PATH, {"error": ERROR}, 409)
    fake.answer("POST", f"{PATH}?confirm=true", ADDED, 201)
    fake.answer("POST", "/admin/v1/apply?prune=false", applied(FAILED))
    fake.answer("POST", "/admin/v1/apply?prune=false&confirm=true", applied())
    return fake


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(session, "_attended", lambda: True)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("florin: 1\nprices: []\n")
    return str(path)


def test_a_script_needs_yes(doubtful, file):
    for command in (ADD, ("apply", "-f", file)):
        refused = doubtful.florin(*command)
        assert refused.exit_code == 1
        assert DOUBT in refused.output
        assert doubtful.florin(*command, "--yes").exit_code == 0


@pytest.mark.usefixtures("terminal")
def test_a_person_is_asked(doubtful, file):
    for command in (ADD, ("apply", "-f", file)):
        declined = doubtful.florin_says("n\n", *command)
        assert declined.exit_code == 1
        assert DOUBT in declined.output
        assert "confirm=true" not in doubtful.asked[-1][1]
        assert doubtful.florin_says("y\n", *command).exit_code == 0
        assert "confirm=true" in doubtful.asked[-1][1]
