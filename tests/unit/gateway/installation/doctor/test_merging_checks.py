from __future__ import annotations

from dataclasses import replace

from adapters.model import Adapter
from adapters.registry.catalog import Catalog
from gateway.costs.prices.book import PriceBook
from gateway.installation.doctor.operations.merging_checks import AdapterHours, of_merging
from gateway.units import NANO
from tests.support.harness import engine_document

USE = AdapterHours(
    "acme/support",
    "H200",
    1,
    "",
    "on_demand",
    24 * 36_000,
    24 * 36_000_00,
    24 * 36_000_00,
    24 * NANO * 14 // 10,
    calibration=1,
)


def diagnoses(use: AdapterHours, serves: str = "") -> list[str]:
    catalog = Catalog()
    catalog.adapters = {"acme/support": Adapter("acme/support", live=3, latest=3)}
    catalog.engines = {"m": engine_document("m", serves=serves)}
    return [d.message for d in of_merging(catalog, [use], PriceBook([]), 0)]


def test_an_adapter_that_keeps_more_than_an_engine_busy_is_worth_a_merged_one():
    (message,) = diagnoses(USE)
    assert "its 10 requests/s kept 1.40 engines of 1 x H200 busy. 1 with its version merged" in message
    assert "save 0.40: at batch 128" in message
    assert not diagnoses(replace(USE, nano_gpu_hours=24 * NANO // 2)), "half an engine"
    assert not diagnoses(USE, serves="acme/support@v3"), "it has one"
    assert not diagnoses(replace(USE, calibration=0)), "ten such requests a second need less"
