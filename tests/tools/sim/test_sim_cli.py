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


def test_a_trace_is_simulated_once(tmp_path):
    trace, file = tmp_path / "march.csv", tmp_path / "figures.json"
    rows = [f"{n / 10},acme,chat,8,100,20" for n in range(100)]
    trace.write_text("arrival_s,tenant,adapter,rank,prompt_tokens,output_tokens\n" + "\n".join(rows))
    result = simulate("--trace", str(trace), "--seeds", "2", "--policy", "cost", "--json", str(file))
    assert result.exit_code == 0, result.output
    (seed,) = orjson.loads(file.read_bytes())["courses"]["march, 8 slots"]["cost"]["seeds"]
    assert (seed["requests"], seed["attainment"]) == (90, 1.0)


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


def test_floods_are_shown_written_and_plotted(tmp_path):
    file, plot = tmp_path / "floods.json", tmp_path / "floods.svg"
    size = "--engines", "1", "--seats", "8", "--workers", "1", "--rate", "0.5", "--overload", "2"
    options = "--weight", "t1=2", "--priority", "t2=0", "--seeds", "1"
    result = CliRunner().invoke(
        app, ["flood", *size, *options, "--json", str(file), "--plot", str(plot)]
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    document = orjson.loads(file.read_bytes())
    assert set(document["floods"]["0.5 requests/s, 1 worker"]) == {"no queue", "fair queue"}
    assert "flood, fair queue" in plot.read_text()


@pytest.mark.parametrize("option", ["--weight", "--priority"])
def test_a_weight_without_a_number_is_named(option):
    result = CliRunner().invoke(app, ["flood", option, "t1=much"])
    assert result.exit_code == 2
    assert "'t1=much' is not TENANT=NUMBER" in result.output


def test_the_fit_is_shown_and_written(tmp_path):
    file = tmp_path / "fit.json"
    result = CliRunner().invoke(app, ["fit", "--engine-model", "h100", "--json", str(file)])
    assert result.exit_code == 0, result.output
    rows = orjson.loads(file.read_bytes())
    assert "inter-token latency, batch 220, 96 adapters" in result.output
    assert all(abs(row["error"]) <= row["stated"] for row in rows)
