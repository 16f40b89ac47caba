"""florin engine roll: what it asks for each engine, and where it stops."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.fleet.engines.commands import draining, rolling
from gateway.fleet.engines.schemas.engines import OwnTrial, RestartingEngine
from tests.support.samples import sample
from tests.unit.gateway.commands.test_commands import DRAIN, ENGINE

BEFORE = 1_700_000_000_000_000
"""Microseconds: 2023-11-14T22:13:20Z."""
SINCE = "2023-11-14T22:13:21Z"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    for module in (draining, rolling):
        monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(rolling, "_SETTLE_SECONDS", 0.0)


class Site:
    """A fleet behind the fake gateway, which drains and restarts engines at once."""

    def __init__(self, fake: Any, *names: str, **fields: Any) -> None:
        self.fake = fake
        self.alone = False
        self.tried: Any = None
        """What becomes of the trial of an engine: None, if it is accepted."""
        self.healthy = True
        self.lost = 0
        made = {"health": "up", "agent": "http://h", "started": BEFORE, "lost": 0, "stopped": 0} | fields
        self.engines = {n: ENGINE | {"name": n, "epoch": f"{n}-1"} | made for n in names}
        site = self

        class Answers(dict[tuple[str, str], Any]):
            def get(self, key: Any, default: Any = None) -> Any:
                found = site.answer(*key)
                return default if found is None else (200, found)

        fake.answers = Answers()

    def answer(self, method: str, path: str) -> Any:
        if path == "/admin/v1/engines":
            return {"data": list(self.engines.values())}
        name, _, action = path.removeprefix("/admin/v1/engines/").partition("/")
        engine = self.engines[name]
        if action == "drain":
            if method == "POST":
                engine["state"] = "draining"
            return DRAIN | {"engine": name, "phase": "drained", "moves": [], "alone": self.alone}
        if action == "restart":
            self.restart(name)
            return sample(RestartingEngine, engine=name)
        if action == "state":
            engine["state"] = "active"
        if action == "trial":
            engine["trial"] = sample(OwnTrial, share=5)
        return engine

    def restart(self, name: str) -> None:
        if self.engines[name].get("trial"):
            self.engines[name]["trial"] = self.tried
        self.engines[name] |= {
            "epoch": f"{name}-2", "started": BEFORE + 2_000_000, "lost": self.lost,
            "health": "up" if self.healthy else "down",
        }  # fmt: skip

    @property
    def asked(self) -> list[str]:
        return [
            f"{method} {path.removeprefix('/admin/v1/engines/')}"
            for method, path, _ in self.fake.asked
            if method != "GET"
        ]


def test_one_engine_after_the_other(fake):
    site = Site(fake, "a1", "a2")
    done = fake.florin("engine", "roll", "--all")
    assert done.exit_code == 0, done.output
    assert site.asked == [
        f"{step}" for n in ("a1", "a2") for step in (f"POST {n}/drain", f"POST {n}/restart", f"PUT {n}/state")
    ]
    assert {"timeout": 600.0, "release": False} in [body for _, _, body in fake.asked]
    assert "2 engines restarted; 0 skipped." in done.stdout
    assert "a2 (2 of 2): draining" in done.stderr


def test_the_operators_command_restarts_it(fake, tmp_path):
    site = Site(fake, "a1", agent="", epoch="", url="http://10.0.0.7:8000")
    out = tmp_path / "out"
    script = f'echo "$FLORIN_ENGINE $FLORIN_ENGINE_HOST $FLORIN_ENGINE_URL" > {out}'
    original = site.answer

    def restarted(method: str, path: str) -> Any:
        if out.exists() and site.engines["a1"]["started"] == BEFORE:
            site.engines["a1"]["started"] += 1
        return original(method, path)

    site.answer = restarted
    assert fake.florin("engine", "roll", "a1", "--command", script).exit_code == 0
    assert out.read_text() == "a1 10.0.0.7 http://10.0.0.7:8000\n"
    assert site.asked == ["POST a1/drain", "PUT a1/state"]


def test_a_restarted_engine_gets_requests_once_the_gateway_knows_that_it_is_empty(fake, monkeypatch):
    """Without an agent the gateway finds that out by itself. Until then, it would send requests for adapters
    that are gone."""
    monkeypatch.setattr(rolling, "_SETTLE_SECONDS", 30.0)
    site = Site(fake, "a1", agent="", epoch="", started=BEFORE + 2_000_000, state="draining")
    original, looks = site.answer, []

    def found_out_later(method: str, path: str) -> Any:
        engine = site.engines["a1"]
        looks.append(f"{method} {path.removeprefix('/admin/v1/engines/')}")
        if path.endswith("/state"):
            assert engine["lost"] == 2
            engine["lost"] = 0
        elif len(looks) == 4:
            engine["lost"] = 2
        return original(method, path)

    site.answer = found_out_later
    assert fake.florin("engine", "roll", "a1", "--since", SINCE).exit_code == 0
    assert "PUT a1/state" in looks


def test_a_failing_command_stops_the_roll(fake):
    site = Site(fake, "a1", "a2")
    done = fake.florin("engine", "roll", "--base", "base", "--command", "exit 3")
    assert done.exit_code == 1
    assert (
        "The command exited with 3. Stopped at engine a1; to continue: florin engine roll --base base"
        in done.stderr
    )
    assert "--command 'exit 3' --since 20" in done.stderr
    assert site.asked == ["POST a1/drain"]


def test_the_first_engine_is_tried_and_the_others_follow_once_it_is_accepted(fake):
    site = Site(fake, "a1", "a2")
    done = fake.florin("engine", "roll", "--all", "--trial", "5")
    assert done.exit_code == 0, done.output
    assert [step for step in site.asked if "trial" in step] == ["PUT a1/trial"]
    assert site.asked[0] == "PUT a1/trial"  # before its new version registers
    assert site.asked[-1] == "PUT a2/state"


def test_a_failed_trial_ends_the_roll(fake):
    site = Site(fake, "a1", "a2")
    site.tried = sample(OwnTrial, share=5, stopped="Half of its requests failed.")
    done = fake.florin("engine", "roll", "--all", "--trial", "5")
    assert done.exit_code == 1
    assert "a1 failed its trial and was drained; no other was restarted. Half of its" in done.stderr
    assert "--since" not in done.stderr  # to continue would take it into service
    assert not any(" a2/" in step for step in site.asked)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"alone": True}, "No other engine of base takes requests"),
        ({"healthy": False}, "has not been restarted and healthy within 1 s"),
        ({"lost": 2}, "not all of the adapters that it held are loaded"),
    ],
)
def test_it_stops_at_the_first_failure(fake, fields, words):
    site = Site(fake, "a1", "a2")
    for name, value in fields.items():
        setattr(site, name, value)
    done = fake.florin("engine", "roll", "--all", "--start-timeout", "1", "--timeout", "0")
    assert done.exit_code == 1
    assert words in done.stderr
    assert "florin engine roll --all --since " in done.stderr
    assert not any(" a2/" in step for step in site.asked)


def test_a_second_roll_continues(fake):
    """a1 is done, a2 was restarted but is still draining, a3 is to be done."""
    site = Site(fake, "a1", "a2", "a3")
    site.restart("a1")
    site.restart("a2")
    site.engines["a2"]["state"] = "draining"
    done = fake.florin("engine", "roll", "--all", "--since", SINCE, "--json")
    assert site.asked == ["PUT a2/state", "POST a3/drain", "POST a3/restart", "PUT a3/state"]
    assert json.loads(done.stdout) == {
        "since": SINCE,
        "engines": [
            {"engine": "a1", "skipped": "has been restarted"},
            {"engine": "a2", "skipped": None},
            {"engine": "a3", "skipped": None},
        ],
    }


def test_a_dry_run_changes_nothing_and_leaves_out_what_the_operator_drains(fake):
    site = Site(fake, "a1", "a2")
    site.engines["a1"]["state"] = "draining"
    done = fake.florin("engine", "roll", "--all", "--dry-run")
    assert "skip: it is draining" in done.stdout
    assert site.asked == []


@pytest.mark.parametrize(
    "words",
    [
        (), ("a1", "--all"), ("a1", "--command", "x", "--wait-for-restart"), ("nope",),
        ("a1", "--since", "yesterday"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(fake, words):
    site = Site(fake, "a1")
    assert fake.florin("engine", "roll", *words).exit_code == 2
    assert site.asked == []
