"""Whether an alert fires on what a gateway's /metrics said before and during an incident: the real rules, judged by
promtool, over real scrapes.

Incidents in tests last seconds and alerts wait for minutes, so the incident is prolonged: gauges stay as they were
last, counters go on rising by as much a minute as they rose from the first scrape to the last.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.promtool import promtool

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "florin.rules.yml"
CALM = 30
"""Minutes of the first scrape, before the incident."""
LASTS = 30
"""Minutes of the incident."""

Series = Mapping[str, tuple[float, bool]]
"""`name{labels}` as promtool reads it, its value, and whether it is a counter's."""


def fires(alert: str, before: str, during: str, tmp: Path) -> bool:
    """Whether `alert` is firing at the end of an incident that looked so. Raises NoPromtoolError."""
    return _firing(alert, before, during, CALM + LASTS, tmp)


def silent(alert: str, before: str, tmp: Path) -> bool:
    """Whether it has nothing to say before the incident."""
    return not _firing(alert, before, before, CALM, tmp)


def _firing(alert: str, before: str, during: str, minute: int, tmp: Path) -> bool:
    assert f"alert: {alert}\n" in RULES.read_text(), f"there is no alert {alert}"
    # Without a sample there would be two answers to tell apart: `or vector(0)` makes it one number.
    asked = f'clamp_max(count(ALERTS{{alertname="{alert}", alertstate="firing"}}), 1) or vector(0)'
    test = {
        "interval": "1m",
        "input_series": [
            {"series": 'up{job="florin", instance="t"}', "values": f"1x{CALM + LASTS}"},
            *_prolonged(_read(before), _read(during)),
        ],
        "promql_expr_test": [
            {"expr": asked, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": 1}]}
        ],
    }
    path = tmp / "incident.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]})
    )
    done = subprocess.run(
        [promtool(), "test", "rules", str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return True
    assert "got:" in said, said  # else it is the test file or the rules that are wrong
    return False


def _prolonged(before: Series, during: Series) -> Iterator[dict[str, str]]:
    for name in sorted(before.keys() | during.keys()):
        first, counter = before.get(name, (None, False))
        last, counter = during.get(name, (None, counter))
        calm = f"_x{CALM}" if first is None else f"{first!r}x{CALM}"
        if last is None:
            values = f"{calm} _x{LASTS}"
        elif counter:
            # promtool repeats so often beyond the first value.
            values = f"{calm} {last!r}{last - (first or 0.0):+.17g}x{LASTS}"
        else:
            values = f"{calm} {last!r}x{LASTS}"
        yield {"series": name, "values": values}


def _read(text: str) -> Series:
    found: dict[str, tuple[float, bool]] = {}
    for family in text_string_to_metric_families(text):
        counts = family.type in {"counter", "histogram", "summary"}
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            labels = {**sample.labels, "job": "florin", "instance": "t"}
            inner = ", ".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels.items()))
            found[f"{sample.name}{{{inner}}}"] = (float(sample.value), counts)
    return found


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
