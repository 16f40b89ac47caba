"""The rules and the dashboard in deploy/: right by promtool, and about metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.errors import CODES
from gateway.observability.metric_names import LEDGER_METRICS, METRICS

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = PROMETHEUS / "florin.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "florin.json"
COSTS = ROOT / "deploy" / "grafana" / "florin-costs.json"

_NAME = re.compile(r"\bflorin_[a-z0-9_]+")
_RECORDED = re.compile(r"\bflorin:[a-z0-9_:]+")


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def expressions() -> list[str]:
    """Of the dashboards: what their panels and their variables ask Prometheus."""
    boards = [json.loads(path.read_text()) for path in (DASHBOARD, COSTS)]
    asked = [
        target["expr"] for board in boards for panel in panels(board) for target in panel.get("targets", ())
    ]
    variables = [v for board in boards for v in board["templating"]["list"]]
    return asked + [v["query"] for v in variables if v["type"] == "query"]


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [p for panel in board["panels"] for p in (panel, *panel.get("panels", ()))]


def metrics_in(text: str) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in _NAME.findall(text)}


def test_the_rules_are_right_by_promtool(promtool: str):
    assert f"{len(rules())} rules found" in run(promtool, "check", "rules", RULES.name)


def test_the_rules_do_what_they_should_by_promtool(promtool: str):
    assert "SUCCESS" in run(promtool, "test", "rules", "florin.tests.yml")


def test_the_example_of_a_configuration_is_right_by_promtool(promtool: str):
    run(promtool, "check", "config", "--syntax-only", "prometheus.yml")


def test_promtool_reads_what_the_dashboard_asks(promtool: str, tmp_path: Path):
    asked = [
        re.sub(r"\$__(rate_)?interval|\$__range", "5m", e)
        for e in expressions()
        if not e.startswith("label_")
    ]
    made = [{"record": f"panel:{i}", "expr": re.sub(r"\$\w+", ".*", e)} for i, e in enumerate(asked)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": made}]}))
    assert f"{len(asked)} rules found" in run(promtool, "check", "rules", str(path))


def test_metrics_lint_by_promtool(promtool: str):
    """Names, units and help texts as Prometheus wants them; but the ledger's unit is the ledger's."""
    text = "".join(
        f"# HELP {name} {text}\n# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n{name} 1\n"
        for name, text in METRICS.items()
    )
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    but = 'florin_ledger_imbalance_nano_gpu_hours use base unit "seconds" instead of "hours"'
    assert (done.stdout + done.stderr).splitlines() == [but]


@pytest.mark.parametrize(
    "path", [RULES, DASHBOARD, COSTS, PROMETHEUS / "florin.tests.yml"], ids=lambda p: p.name
)
def test_every_metric_named_exists(path: Path):
    found = metrics_in(path.read_text())
    assert found
    assert found <= METRICS.keys()


def test_what_is_read_from_recorded_rules_is_recorded():
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    read = {name for e in (*expressions(), *(r["expr"] for r in rules())) for name in _RECORDED.findall(e)}
    assert read == recorded


def test_every_alert_is_tested_and_says_what_to_do():
    tests = yaml.safe_load((PROMETHEUS / "florin.tests.yml").read_text())["tests"]
    fired: dict[str, set[bool]] = {}
    for test in tests:
        for case in test.get("alert_rule_test", ()):
            fired.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    assert fired == {rule["alert"]: {True, False} for rule in alerts()}
    for rule in alerts():
        assert rule["annotations"].keys() == {"summary", "description", "action", "runbook"}
        assert rule["annotations"]["runbook"] == runbook(rule["alert"])
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def runbook(alert: str) -> str:
    """Where GitHub and other renderers put the section of that heading."""
    return f"docs/incidents.md#{alert.lower()}"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    sections = re.split(r"^### ", (ROOT / "docs" / "incidents.md").read_text(), flags=re.MULTILINE)[1:]
    found = {head: body for head, _, body in (section.partition("\n") for section in sections)}
    assert {head for head in found if head.startswith("Florin")} == {rule["alert"] for rule in alerts()}
    assert all(body.strip() for body in found.values())


def test_errors_that_count_are_those_that_are_not_the_clients():
    [rule] = [r for r in rules() if r.get("record") == "florin:errors:ratio5m"]
    [codes] = re.findall(r'code=~"([a-z_|]+)"', rule["expr"])
    ours = {name for name, code in CODES.items() if code.status >= 500}
    assert set(codes.split("|")) == ours, f"the rule {rule['record']} names each error of status 500 or more"


def test_what_the_ledger_tells_is_never_added_up_over_hosts():
    """Each host shows the same: a sum over instances would count it once for each."""
    for asked in (*expressions(), *(rule["expr"] for rule in rules())):
        for name in metrics_in(asked) & LEDGER_METRICS.keys():
            inside = re.findall(rf"(\w+)(?: by \([^)]*\))? ?\((?:rate|increase|abs|delta)?\(?{name}", asked)
            assert "sum" not in inside, asked


def test_the_dashboard_can_be_imported():
    board = json.loads(DASHBOARD.read_text())
    rows = ["Developer", "Operator", "Customers", "Engines", "Engine $engine", "Adapters", "Finance"]
    assert [p["title"] for p in board["panels"] if p["type"] == "row"] == rows
    repeated = {p["repeat"] for p in board["panels"] if p.get("repeat")}
    assert (
        repeated
        <= {v["name"] for v in board["templating"]["list"] if v.get("multi")}
        == {"adapter", "engine"}
    )
    shown = {name for asked in expressions() for name in metrics_in(asked)}
    recorded = {name for rule in rules() if "record" in rule for name in metrics_in(rule["expr"])}
    unseen = METRICS.keys() - shown - recorded
    assert not unseen, f"{unseen} need a panel or a recorded rule"


@pytest.mark.parametrize("path", [DASHBOARD, COSTS], ids=lambda p: p.name)
def test_every_panel_says_what_it_shows(path: Path):
    board = json.loads(path.read_text())
    ids = [panel["id"] for panel in panels(board)]
    assert len(set(ids)) == len(ids)
    for panel in panels(board):
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"]
            assert panel["targets"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "$datasource"}
