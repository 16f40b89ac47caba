"""Plots must show every contestant and every size."""

import xml.etree.ElementTree as ET

from loadtests.overhead.loadgen import Result
from loadtests.overhead.plots import curves, dots, page

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> set[str]:
    return {element.text for element in ET.fromstring(svg).iter(f"{SVG}text")}


def test_dots_show_each_contestant_and_its_median():
    def result(cost_us: float) -> Result:
        cpu = {"gateway": cost_us / 1e6, "mock": 0.1, "loadgen": 0.1, "foreign": 0.0}
        return Result(16, 1.0, answers=1, cpu=cpu, latency_ms={"p50": 1.0, "p99": 2.0})

    rounds = {"florin": [result(40), result(50), result(60)], "a <b>": [result(5000)]}
    shown = texts(dots({"plain": rounds}))
    assert {"florin", "a <b>", "50.0", "5,000.0"} <= shown


def test_curves_show_each_series():
    flat = [(10, 50.0), (100, 50.0), (1000, 50.0)]
    drawn = page([curves("CPU µs", "tenants", {"tenants": flat, "engines": [(2, 50.0), (1000, 90.0)]})])
    assert {"CPU µs", "tenants", "engines"} <= texts(drawn)
    circles = list(ET.fromstring(drawn).iter(f"{SVG}circle"))
    assert len(circles) == 5
    assert len({circle.get("cy") for circle in circles}) == 2


def test_nothing_measured_is_an_empty_plot():
    assert texts(dots({})) == set()
