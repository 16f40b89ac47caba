from __future__ import annotations

from pathlib import Path

import pytest

from adapters.placement.scheduling.view import Action, Pick
from gateway.routing.decision_log import RECORD_BYTES, DecisionLog, Search

PICK = Pick(
    "b", Action.LOAD, 70.04, (("a", Action.SERVE, 99.0), ("b", Action.LOAD, 70.04)), fleet=5, cached=120
)


@pytest.fixture
def log(tmp_path: Path):
    opened = DecisionLog(tmp_path, records=8)
    yield opened
    opened.close()


def test_a_decision_is_found_by_its_request(log: DecisionLog):
    log.note("req-1", 1, "acme/support@v1", "b", PICK)
    log.note("req-2", 1, "acme/support@v1", "a", None)
    log.note("req-1", 2, "acme/support@v1", "c", PICK)
    first, second = log.find("req-1")
    assert (first["attempt"], first["engine"], first["action"], first["cost_ms"]) == (1, "b", "load", 70.0)
    assert first["considered"] == [["b", "load", 70.0], ["a", "serve", 99.0]]
    assert (first["fleet"], second["engine"], first["expected_cached_tokens"]) == (5, "c", 120)
    assert "picked" not in log.find("req-2")[0]
    assert log.find("req") == []


def test_a_search_that_took_time_says_what_for(log: DecisionLog):
    log.note("req-1", 1, "acme/support@v1", "b", PICK, Search(0.0009, 0.0, 0.0))
    log.note("req-2", 1, "acme/support@v1", "b", PICK, Search(1.25, 0.25, 0.9))
    assert "search_ms" not in log.find("req-1")[0]
    told = log.find("req-2")[0]
    assert (told["search_ms"], told["queue_ms"], told["load_ms"]) == (1250.0, 250.0, 900.0)


def test_the_oldest_decisions_are_overwritten(log: DecisionLog, tmp_path: Path):
    for number in range(20):
        log.note(f"req-{number}", 1, "acme/support@v1", "a", PICK)
    assert [number for number in range(20) if log.find(f"req-{number}")] == list(range(12, 20))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 8 * RECORD_BYTES


def test_workers_read_each_others_decisions_and_take_over_files_of_dead_ones(
    log: DecisionLog, tmp_path: Path
):
    other = DecisionLog(tmp_path, records=8)
    other.note("req-other", 1, "acme/support@v1", "a", PICK)
    assert log.find("req-other")
    other.close()
    successor = DecisionLog(tmp_path, records=8)
    assert log.find("req-other"), "a worker's end loses nothing"
    successor.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_long_decision_is_cut_to_its_record(log: DecisionLog):
    names = tuple((f"{number}-{'x' * 200}", Action.SERVE, float(number)) for number in range(20))
    log.note("req-1", 1, "acme/" + "y" * 63, "a", Pick("a", Action.SERVE, 0.0, names, fleet=20))
    (found,) = log.find("req-1")
    assert 0 < len(found["considered"]) < 8


@pytest.mark.parametrize("request_id", ["", '"', "req-1\x00", "\\", "é" * 100])
def test_rubbish_is_not_found(log: DecisionLog, request_id: str):
    log.note("req-1", 1, "acme/support@v1", "a", PICK)
    assert log.find(request_id) == []
