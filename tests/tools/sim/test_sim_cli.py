"""`python -m loadtests.sim` must write what it found, and refuse what it cannot run."""

import xml.etree.ElementTree as ET

import orjson
import pytest
from typer.testing import CliRunner

from loadtests.sim.__main__ import app

SHORT = ["--duration", "20", "--rate", "4", "--engines", "2", "--seeds", "1"]


def simulate(*arguments: str):
    return CliRunner().invoke(app, [*SHORT, *arguments])


def test_figures_of_each_policy_and_seed_are_written(tmp_path):
    file = tmp_path / "figures.json"
    policies = "--policy", "cost", "--policy", "random+direct"
    result = simulate(*policies, "--seeds", "2", "--workers", "2", "--json", str(file))
    assert result.exit_code == 0, result.output
    document = orjson.loads(file.read_bytes())
    assert document["settings"]["workers"] == 2
    found = document["courses"]["W1, 8 slots"]
    assert set(found) == {"cost", "random+direct"}
    for policy in found.values():
        assert len(policy["seeds"]) == 2
        assert policy["mean"]["attainment"] == pytest.approx(
            sum(seed["attainment"] for seed in policy["seeds"]) / 2
        )
        assert policy["seeds"][0]["requests"] > 50
    assert "random+direct" in result.output


def test_capacities_are_written_and_plotted(tmp_path):
    file, plot = tmp_path / "capacity.json", tmp_path / "capacity.svg"
    sizes = "--slots", "2", "--slots", "4"
    outputs = "--json", str(file), "--plot", str(plot)
    result = simulate("--capacity", *sizes, "--policy", "cost", "--policy", "bound", *outputs)
    assert result.exit_code == 0, result.output
    capacities = orjson.loads(file.read_bytes())["capacity"]
    assert set(capacities) == {"W1, 2 slots", "W1, 4 slots"}
    assert all(case["bound"][0] >= case["cost"][0] > 0 for case in capacities.values())
    texts = {element.text for element in ET.parse(plot).iter("{http://www.w3.org/2000/svg}text")}
    assert {"cost", "bound"} <= texts


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--policy", "best"], "no policy 'best'; there are cost"),
        (["--workload", "W9"], "no workload 'W9'; there are W1"),
        (["--engine-model", "b300"], "no engine model 'b300'; there are h200, h100"),
        (["--trace", "absent.csv"], "absent.csv"),
    ],
)
def test_what_cannot_be_simulated_is_named(arguments, why):
    result = simulate(*arguments)
    assert result.exit_code == 2
    assert why in result.output


def test_the_fit_is_shown_and_written(tmp_path):
    file = tmp_path / "fit.json"
    result = CliRunner().invoke(app, ["fit", "--engine-model", "h100", "--json", str(file)])
    assert result.exit_code == 0, result.output
    rows = orjson.loads(file.read_bytes())
    assert "inter-token latency, batch 128, 16 adapters" in result.output
    assert all(abs(row["error"]) <= row["stated"] for row in rows)
