"""What each driver says and reads. The answers are as the engines' sources write them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from adapters.drivers import DRIVERS, driver_of
from adapters.drivers.driver import CHAT, COMPLETIONS, HttpCall, Loading, Lora, Trouble, UnsupportedFieldError
from adapters.model import DriverName, Engine
from adapters.placement import fingerprint
from gateway.fields.rule import FieldAction
from gateway.fields.tables import CHAT as CHAT_FIELDS
from gateway.fields.tables import COMPLETIONS as COMPLETION_FIELDS
from gateway.fields.tables import check_passed
from loadtests.mock_engine.state import Spec, State

LORA = Lora("fl-1", "/artifacts/1")
OTHERS = [name for name in DRIVERS if name != "vllm"]
CHATTED = {"messages": [{"role": "user", "content": "Hi"}], "model": "fl-1", "cache_salt": "s"}
STREAMED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_engine_knows_whether_it_loads_later(driver):
    engine = Engine("a", "http://a", "base", "H200", 1, 8, driver=driver)
    assert (engine.only is None) == (DRIVERS[driver].capabilities.loading is not Loading.START)


def request(driver: str, lora: Lora | None = LORA, route: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {**CHATTED, **fields}
    if route == COMPLETIONS:
        body = {"prompt": "Hi", **{k: v for k, v in body.items() if k != "messages"}}
    return DRIVERS[driver].request(route, body, "base", lora)


def test_every_kind_has_a_driver():
    assert tuple(DRIVERS) == get_args(DriverName)
    assert all(driver.name == name for name, driver in DRIVERS.items())
    engine = Engine("a", "http://a", "base", "H200", 1, 8, driver="sglang")
    assert driver_of(engine).title == "SGLang"


@pytest.mark.parametrize(
    ("driver", "named", "base"),
    [
        ("sglang", {"model": "base:fl-1", "cache_salt": "s"}, {"model": "base", "cache_salt": "s"}),
        (
            "trtllm",
            {
                "model": "base",
                "cache_salt": "s",
                "lora_request": {
                    "lora_name": "fl-1",
                    "lora_int_id": 5479223561962235510,
                    "lora_path": "/artifacts/1",
                },
            },
            {"model": "base", "cache_salt": "s"},
        ),
        ("tgi", {"model": "fl-1"}, {"model": "tgi"}),
        ("lorax", {"model": "/artifacts/1", "adapter_source": "local"}, {"model": "base"}),
    ],
)
def test_a_request_names_its_adapter_in_each_engines_way(driver, named, base):
    said = {"messages": CHATTED["messages"]}
    assert request(driver) == said | named
    assert request(driver, None) == said | base


def test_ids_for_tensorrt_llm_are_positive_and_differ():
    ids = {request("trtllm", Lora(f"fl-{n}", "/x"))["lora_request"]["lora_int_id"] for n in range(1000)}
    assert len(ids) == 1000
    assert all(0 < id_ < 2**63 for id_ in ids)


@pytest.mark.parametrize(
    ("driver", "options"),
    [
        ("sglang", STREAMED["stream_options"]),
        ("trtllm", STREAMED["stream_options"]),
        ("tgi", {"include_usage": True}),
        ("lorax", None),
    ],
)
def test_a_stream_asks_for_counts_as_often_as_the_engine_gives_them(driver, options):
    assert request(driver, **STREAMED).get("stream_options") == options
    running = DRIVERS[driver].capabilities.running_counts
    assert running == bool(options and "continuous_usage_stats" in options)


@pytest.mark.parametrize("driver", OTHERS)
def test_a_field_that_the_engine_lacks_is_refused_unless_it_changes_nothing(driver):
    with pytest.raises(UnsupportedFieldError) as refused:
        request(driver, thinking_token_budget=5)
    assert refused.value.field == "thinking_token_budget"
    harmless = {"bad_words": [], "continue_final_message": False, "echo": False, "n": 1, "logprobs": False}
    request(driver, **harmless, structured_outputs=None)


@pytest.mark.parametrize("driver", OTHERS)
def test_a_stream_is_not_resumed_where_that_is_untried(driver):
    """The continuation of a stream would be read as another chat."""
    assert not DRIVERS[driver].capabilities.resumes
    if driver != "sglang":
        with pytest.raises(UnsupportedFieldError):
            request(driver, continue_final_message=True)


@pytest.mark.parametrize("driver", OTHERS)
def test_no_driver_passes_on_a_field_that_clients_may_not_send(driver):
    """Fields that choose an adapter there, or control the engine, are dropped, whatever the operator has passed
    on, and so never get here. Were one to come all the same, it would be refused."""
    for name in (
        "lora_path",
        "lora_request",
        "adapter_id",
        "adapter_source",
        "rid",
        "session_params",
        "api_token",
    ):
        assert not CHAT_FIELDS[name].sends
        with pytest.raises(ValueError, match=name):
            check_passed([name])
        with pytest.raises(UnsupportedFieldError):
            request(driver, **{name: "x"})
    sent = {FieldAction.PASS, FieldAction.BOUND, FieldAction.REPLACE}
    for route, known in _accepted(driver).items():
        assert known <= {name for name, rule in _table(route).items() if rule.action in sent}


def _accepted(driver: str) -> dict[str, frozenset[str]]:
    return importlib.import_module(f"adapters.drivers.{driver}")._FIELDS


def _table(route: str) -> Any:
    return CHAT_FIELDS if route == CHAT else COMPLETION_FIELDS


def test_values_that_other_engines_write_otherwise():
    assert request("sglang", top_k=0)["top_k"] == -1
    assert request("trtllm", top_k=-1)["top_k"] == 0
    assert "top_k" not in request("lorax", top_k=0)
    assert request("tgi", stop="x")["stop"] == ["x"]
    assert request("lorax", stop="x", max_completion_tokens=3, ignore_eos=True) == {
        "messages": CHATTED["messages"],
        "stop": ["x"],
        "max_tokens": 3,
        "ignore_eos_token": True,
        "model": "/artifacts/1",
        "adapter_source": "local",
    }
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    wanted = request("trtllm", response_format=schema)["response_format"]
    assert wanted == {"type": "json", "schema": {"type": "object"}}


def test_lorax_samples_only_if_n_is_given():
    assert request("lorax", route=COMPLETIONS, temperature=0) == {
        "prompt": "Hi",
        "model": "/artifacts/1",
        "adapter_source": "local",
    }
    assert request("lorax", route=COMPLETIONS, temperature=0.5)["n"] == 1
    with pytest.raises(UnsupportedFieldError):
        request("lorax", route=COMPLETIONS, prompt=["a", "b"])


def test_tensorrt_llm_serves_no_route_without_a_salt():
    assert DRIVERS["trtllm"].capabilities.routes == {CHAT}


# -- adapters


def test_control_calls():
    assert DRIVERS["sglang"].load(LORA) == HttpCall(
        "POST", "/load_lora_adapter", {"lora_name": "fl-1", "lora_path": "/artifacts/1"}
    )
    assert DRIVERS["sglang"].unload("fl-1") == HttpCall("POST", "/unload_lora_adapter", {"lora_name": "fl-1"})
    for driver in DRIVERS.values():
        if driver.capabilities.loading is not Loading.CALL:
            with pytest.raises(NotImplementedError):
                driver.load(LORA)


def test_a_repeated_load_is_recognized():
    said = "a returned HTTP 400: Failed to load LoRA adapter fl-1 because it is already loaded"
    assert DRIVERS["sglang"].is_loaded(400, said)
    assert not DRIVERS["sglang"].is_loaded(400, "a returned HTTP 400: rank 64 is incompatible")
    assert DRIVERS["vllm"].is_loaded(400, "The lora adapter 'fl-1' has already been loaded.")


NEVER = "Got LoRA adapter that has never been loaded: fl-1\nAll loaded adapters: dict_keys([])."
GONE = "The following requested LoRA adapters are not loaded: fl-1\nLoaded adapters: dict_keys([])."


@pytest.mark.parametrize(
    ("driver", "status", "message", "trouble"),
    [
        ("sglang", 400, NEVER, Trouble.UNKNOWN_MODEL),
        ("sglang", 400, GONE, Trouble.UNKNOWN_MODEL),
        ("sglang", 400, "max_tokens is too large", None),
        ("sglang", 500, NEVER, None),
        ("tgi", 424, "Request failed during generation: out of memory", Trouble.ENGINE),
        ("tgi", 422, "Input validation error", None),
        ("lorax", 424, "Request failed during generation: No adapter found", Trouble.ENGINE),
        ("vllm", 404, "The model `fl-1` does not exist.", None),
        ("trtllm", 400, "lora_path (/x) does not exist.", None),
    ],
)
def test_what_an_error_means(driver, status, message, trouble):
    assert DRIVERS[driver].trouble(status, message) is trouble


CARD = {"id": "base", "object": "model", "created": 1}
MODELS = {
    "vllm": {"data": [CARD | {"owned_by": "vllm"}]},
    "sglang": {"data": [CARD | {"owned_by": "sglang", "root": "base", "max_model_len": 4096}]},
    "trtllm": {"data": [CARD | {"owned_by": "tensorrt_llm"}]},
    "tgi": {"data": [CARD | {"owned_by": "base"}]},
    "lorax": None,
}
INFO = {
    "tgi": {
        "model_id": "base",
        "router": "text-generation-router",
        "max_total_tokens": 2048,
        "version": "3.3.7",
    },
    "lorax": {
        "model_id": "base",
        "model_device_type": "cuda",
        "eager_prefill": False,
        "max_total_tokens": 2048,
    },
}


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_engine_is_recognized_by_its_driver_alone(driver):
    mine = [d.name for d in DRIVERS.values() if d.is_mine(MODELS[driver], INFO.get(driver))]
    assert mine == [driver]
    assert not DRIVERS[driver].is_mine(None, None)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_list_of_models_is_read(driver):
    told = INFO[driver] if driver in INFO else MODELS[driver]
    listing = DRIVERS[driver].listing(told)
    assert listing.bases == {"base": "base"}
    assert (listing.loras is None) == (not DRIVERS[driver].capabilities.lists)
    assert listing.lacks("fl-1") == DRIVERS[driver].capabilities.lists


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("answer", [None, [], {}, {"data": None}, {"data": [{}]}, {"model_id": 1}, "x"])
def test_rubbish_is_no_list(driver, answer):
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        DRIVERS[driver].listing(answer)


def test_limits():
    told = {"enable_lora": True, "max_loras_per_batch": 8, "max_lora_rank": 64, "version": "0.5.23"}
    limits = DRIVERS["sglang"].limits(orjson.dumps(told))
    assert (limits.loras, limits.slots, limits.max_rank) == (True, 8, 64)
    assert DRIVERS["sglang"].limits(b"{}").loras is False
    assert DRIVERS["vllm"].limits(b'vllm:lora_requests_info{max_lora="3"} 1\n').slots == 3


def test_what_an_engine_tells_of_its_memory(tmp_path: Path):
    engine = State(Spec(check_paths=False, max_loras=1, tells_residency=True))
    for name in ("fl-1", "fl-2"):
        engine.load({"lora_name": name, "lora_path": str(tmp_path)})
    metrics = engine.metrics(0)
    assert DRIVERS["vllm"].residency(metrics) == {"fl-1": False, "fl-2": True}
    assert DRIVERS["vllm"].limits(metrics).slots == 1
    foreign = b'\nvllm:lora_adapter_loaded{adapter_name="fl-3",level="gpu"} 1\n'
    assert DRIVERS["vllm"].residency(foreign) is None, "its own gauge says whether it tells"
    gone = metrics.replace(b"} 1.0\n", b"} 0.0\n")
    assert DRIVERS["vllm"].residency(gone) == {}


# -- Florin's own requests


def test_a_probe_is_read_from_each_engines_answers():
    """The same logprobs, however an engine writes them."""
    lps = [-0.1, -1.0, -2.0, -3.0, -4.0]
    tokens = [{"id": i, "text": "t", "logprob": lp} for i, lp in enumerate(lps)]
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    said = {
        "trtllm": {
            "choices": [{"message": {"content": "hi"}, "logprobs": {"content": [{"top_logprobs": tokens}]}}],
            "usage": usage,
        },
        "tgi": {
            "generated_text": "hi",
            "details": {"generated_tokens": 4, "prefill": [{}] * 3, "top_tokens": [tokens]},
        },
        "lorax": {
            "generated_text": "hi",
            "details": {
                "generated_tokens": 4,
                "prompt_tokens": 3,
                "tokens": [{"alternative_tokens": tokens}],
            },
        },
    }
    for name, answer in said.items():
        driver = DRIVERS[name]
        calls = driver.ask(fingerprint.request("fl-1", "s"), "base", LORA)
        assert len(calls) == len(fingerprint.CONTEXTS)
        probe = fingerprint.parse(driver.answer([answer] * len(calls)))
        assert probe.logprobs == tuple(lps) * len(calls)
        assert probe.texts == ("hi",) * len(calls)
        assert (probe.prompt_tokens, probe.completion_tokens) == (3 * len(calls), 4 * len(calls))


def test_sglang_is_probed_with_logprobs_to_spare():
    """It lists them by text, and two tokens may have the same."""
    (call,) = DRIVERS["sglang"].ask(fingerprint.request("fl-1", "s"), "base", LORA)
    assert (call.path, call.body["model"]) == (COMPLETIONS, "base:fl-1")
    assert call.body["logprobs"] > fingerprint.TOP
    assert "return_tokens_as_token_ids" not in call.body


@pytest.mark.parametrize("driver", DRIVERS)
def test_one_token_costs_one_call(driver):
    (call,) = DRIVERS[driver].ask(fingerprint.one_token("base", "s"), "base", None)
    assert "fl-" not in str(call.body)


# -- the documentation


def _documented() -> dict[str, dict[str, str]]:
    """What docs/other-engines.md says in its first table: driver → row → cell."""
    page = Path(__file__).parents[4] / "docs" / "other-engines.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    columns = [name.strip("`") for name in next(row for row in cells if row[0] == "`--driver`")[1:]]
    return {name: {row[0]: row[at] for row in cells} for at, name in enumerate(columns, 1)}


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_documented_capabilities_are_the_drivers(driver):
    can, said = DRIVERS[driver].capabilities, _documented()[driver]
    loads = {Loading.CALL: "by a call", Loading.REQUEST: "with a request", Loading.START: "at its start"}
    assert said["loads an adapter"] == loads[can.loading]
    assert said["aborted streams are counted"] == ("exactly" if can.running_counts else "estimated")
    yes = {
        "lists what it holds": can.lists,
        "token counts while it streams": can.running_counts,
        "cache salts": can.salts,
        "resumed streams": can.resumes,
        "scores of prompts": can.prompt_scores,
        "embeddings, rerank": "embed" in can.tasks,
        "`/v1/completions`": COMPLETIONS in can.routes,
        "DoRA": can.dora,
    }
    assert {row: said[row] for row in yes} == {row: "yes" if true else "no" for row, true in yes.items()}
