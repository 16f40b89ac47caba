"""The autoscaling examples name metrics that exist, with their labels, and scale to what is wanted."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gateway.observability.metric_names import AT_SCRAPE

FOLDER = Path("deploy/autoscaling")
WANTED, WAITING = "florin_engines_wanted", "florin_requests_waiting"


def check_query(query: str) -> None:
    """As many engines as are wanted; without any, one if requests wait."""
    parts = re.fullmatch(r"max\((\w+)\{(.+)\}\) or clamp_max\(max\((\w+)\{(.+)\}\), 1\)", query.strip())
    assert parts
    assert (parts[1], parts[3]) == (WANTED, WAITING)
    for name, labels in ((WANTED, parts[2]), (WAITING, parts[4])):
        assert tuple(re.findall(r"(\w+)=", labels)) == AT_SCRAPE[name]
    assert len(set(re.findall(r'base_model="([^"]+)"', query))) == 1


def test_keda_asks_for_one_engine_for_each_that_is_wanted():
    spec = yaml.safe_load((FOLDER / "keda.yaml").read_text())["spec"]
    [trigger] = spec["triggers"]
    check_query(trigger["metadata"]["query"])
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
    assert spec["minReplicaCount"] >= 1


def test_the_horizontal_pod_autoscaler_does_too():
    text = (FOLDER / "hpa.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    [metric] = spec["metrics"]
    external = metric["external"]
    assert external["metric"]["name"] == WANTED
    assert tuple(external["metric"]["selector"]["matchLabels"]) == AT_SCRAPE[WANTED]
    for value in external["metric"]["selector"]["matchLabels"].values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)
    assert external["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert spec["minReplicas"] >= 1
    rule = yaml.safe_load(
        "\n".join(line[2:] for line in text.splitlines() if re.match(r"# +(- |[a-z]+\w*:)", line))
    )
    assert rule[0]["seriesQuery"] == WANTED
