"""What an input costs is bounded by its size: time in proportion to it, whatever the input holds.

Each shape is made at two sizes, one four times the other. Processor time counts, not the clock's; the larger may take
eight times as long, and the least of up to three measurements of each counts, so that a busy machine does not matter. What
takes the square of its size takes sixteen times as long. The long form uses the largest bodies that are accepted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from adapters.checks.validate import validate
from adapters.errors import AdaptersError
from gateway.admission.complexity import check
from gateway.batches.lines import BadLineError, read_line
from gateway.composition.reconfigure import complexity
from gateway.config import Settings
from gateway.config.trusted_proxies import TrustedProxies
from gateway.dataplane.request import Endpoint, parse, policy
from gateway.dialects.endpoints import ENDPOINTS
from gateway.errors import FlorinError
from gateway.evaluations.scoring import BadPlanError, json_schema
from gateway.fields.patterns import objection
from gateway.metering.prompt_estimate import prompt_tokens
from gateway.routing.prefixes import blocks_of
from gateway.tenants.request_policy import RequestPolicies
from gateway.tenants.terms import DEFAULT_POLICY
from tests.support.forms import LONG
from tests.support.lora import LLAMA, lora_config

SETTINGS = Settings()
POLICY = RequestPolicies(policy(SETTINGS)).of(DEFAULT_POLICY)
BYTES = SETTINGS.max_body_bytes if LONG else 512 * 1024
STEP, GROWTH, NOISE_SECONDS = 4, 8.0, 0.03
ASTRAL = "\N{GRINNING FACE}"

Make = Callable[[int], Any]
"""Something of about so many units, whatever a unit is."""

TEXTS: dict[str, Make] = {
    "plain": lambda n: "a" * n,
    "astral": lambda n: ASTRAL + "a" * n,
    **{name: lambda n, unit=unit: unit * n for name, unit in {
        "brackets": "[", "braces": "{", "backslashes": "\\", "quotes": '"', "newlines": "\n", "returns": "\r", "spaces": " ",
        "commas": ",", "dots": ".", "digits": "1", "tags": "<|", "data": "data:", "colons": ":",
    }.items()},
}  # fmt: skip


def many(*items: Any) -> Make:
    return lambda n: list(items) * max(1, n // len(items))


def tool(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "f", "parameters": {"type": "object", "properties": properties}, **more}


TOOLS: dict[str, Make] = {
    "a pattern of brackets": lambda n: [tool({"a": {"pattern": "[" * n}})],
    "patterns of brackets": lambda n: [
        tool({f"a{i}": {"pattern": "[" * 2000} for i in range(n // 2000 + 1)})
    ],
    "sound patterns": lambda n: [tool({f"a{i}": {"pattern": "(a?b)" * 400} for i in range(n // 2000 + 1)})],
    "many properties": lambda n: [tool({f"a{i}": {"type": "string"} for i in range(n // 30)})],
    "many tools": lambda n: [tool({})] * (n // 60),
    "a long list": lambda n: [tool({"a": {"enum": ["x"] * (n // 4)}})],
    "an astral description": lambda n: [tool({}, description=ASTRAL + "x" * n)],
}


def bodies(path: str) -> Iterator[tuple[str, Make]]:
    """Shapes of a route's bodies, all of which hold what the route needs."""
    base: dict[str, Any] = {"model": "m"}
    chat = {"messages": [{"role": "user", "content": "x"}]}
    text: Callable[[Any], dict[str, Any]]
    if path.startswith("/v1/responses"):
        base["input"] = "x"
        text = lambda value: {"input": value}  # noqa: E731
        for kind, item in {
            "system": {"role": "system", "content": ASTRAL},
            "assistant": {"role": "assistant", "content": "x"},
            "call": {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
            "part": {"role": "developer", "content": [{"type": "input_text", "text": ASTRAL}]},
        }.items():
            yield f"many {kind} items", lambda n, item=item: base | {"input": [item] * (n // 40 + 1)}
        for name, make in TOOLS.items():
            yield (
                f"tools: {name}",
                lambda n, make=make: base | {"tools": [{"type": "function", **t} for t in make(n)]},
            )
    elif path in {"/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"}:
        base |= chat
        if path == "/v1/messages":
            base["max_tokens"] = 5
        text = lambda value: {"messages": [{"role": "user", "content": value}]}  # noqa: E731
        for kind, items in {
            "system": [{"role": "system", "content": ASTRAL}],
            "turns": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
            "part": [{"role": "user", "content": [{"type": "text", "text": ASTRAL}]}],
        }.items():
            yield f"many {kind}", lambda n, items=items: base | {"messages": items * (n // 80 + 1)}
        yield "many parts", lambda n: base | text([{"type": "text", "text": "x"}] * (n // 30))
        for name, make in TOOLS.items():
            if path == "/v1/chat/completions":
                wrapped = lambda n, make=make: [{"type": "function", "function": t} for t in make(n)]  # noqa: E731
            else:
                wrapped = lambda n, make=make: [  # noqa: E731
                    {"input_schema" if k == "parameters" else k: v for k, v in t.items()} for t in make(n)
                ]
            yield f"tools: {name}", lambda n, wrapped=wrapped: base | {"tools": wrapped(n)}
    else:
        field = {
            "/v1/completions": "prompt", "/v1/embeddings": "input", "/v1/rerank": "query", "/v1/score": "text_1",
            "/v1/tokenize": "prompt", "/v1/detokenize": "tokens",
        }[path]  # fmt: skip
        base |= {field: "x"} | {"/v1/rerank": {"documents": ["x"]}, "/v1/score": {"text_2": "x"}}.get(
            path, {}
        )
        text = lambda value: {field: value}  # noqa: E731
        for name, make in {"texts": many("x"), "tokens": many(1), "lists of tokens": many([1])}.items():
            yield f"many {name}", lambda n, make=make: base | {field: make(n // 4)}
        yield "many documents", lambda n: base | {"documents": ["x"] * (n // 4), "text_2": ["x"] * (n // 4)}
    for name, make in TEXTS.items():
        yield f"a text: {name}", lambda n, make=make: base | text(make(n))
    yield "unknown fields", lambda n: base | {f"f{i}": 1 for i in range(n // 12)}
    yield "a long name", lambda n: base | {"f" * n: 1}
    yield "a long model", lambda n: base | {"model": "m" * n}
    yield "a long user", lambda n: base | {"user": ASTRAL * (n // 4)}
    yield "much metadata", lambda n: base | {"metadata": {f"k{i}": "v" for i in range(n // 12)}}
    yield "many stops", lambda n: base | {"stop": ["x"] * (n // 4), "stop_sequences": ["x"] * (n // 4)}
    yield "many biases", lambda n: base | {"logit_bias": {str(i): 1 for i in range(n // 10)}}
    yield (
        "a wide schema",
        lambda n: (
            base
            | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": wide(n)}}}
        ),
    )


def wide(n: int) -> dict[str, Any]:
    return {"properties": {f"p{i}": {"pattern": "[a]"} for i in range(n // 30)}}


def read(endpoint: Endpoint, raw: bytes) -> None:
    """What the gateway does with a body before it looks for an engine."""
    check(raw, complexity(SETTINGS))
    call = parse(endpoint, raw, POLICY)
    if not endpoint.free:
        prompt_tokens(call.body)
    blocks_of(call.payload("fl-name", "salt"), "salt")


def costs(work: Callable[[Any], object], value: Any) -> Iterator[float]:
    """Processor seconds of three measurements."""
    for _ in range(3):
        begun = time.process_time()
        with contextlib.suppress(
            AdaptersError, FlorinError, BadLineError, BadPlanError
        ):  # a refusal costs, too
            work(value)
        yield time.process_time() - begun


def disproportionate(work: Callable[[Any], object], make: Make, size: int) -> str:
    """What a large input costs, if that is too much for its size; otherwise nothing. The large one is measured again
    only while it costs too much: one measurement that is short enough decides."""
    measured = costs(work, make(size))
    large = next(measured)
    if large <= NOISE_SECONDS:
        return ""
    small = min(costs(work, make(size // STEP)))
    enough = GROWTH * small + NOISE_SECONDS
    while large > enough and (again := next(measured, None)) is not None:
        large = min(large, again)
    return f"{small:.3f} → {large:.3f} s" if large > enough else ""


@pytest.mark.parametrize("path", [path for path in ENDPOINTS if path.startswith("/v1/")])
def test_a_body_costs_time_in_proportion_to_its_size(path: str):
    endpoint = ENDPOINTS[path]
    failures = {
        shape: trouble
        for shape, make in bodies(path)
        if (trouble := disproportionate(lambda raw: read(endpoint, raw), lambda n, make=make: orjson.dumps(make(n)), BYTES))
    }  # fmt: skip
    assert failures == {}


@pytest.mark.parametrize(
    "piece",
    ["[", "(", ")", "a?", "(?", "[^", "\\", "{", "a{1,", "|", "(|", "[a-", "\\p{", "((a|b)?", "{1", "\\x{", "(?<a", "[a]"],
)  # fmt: skip
def test_an_expression_is_read_once(piece: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.fields.patterns.MAX_LENGTH", 1 << 30)
    assert disproportionate(objection, lambda n: (piece * n)[:n], 40_000) == ""


@pytest.mark.parametrize(
    "piece", ['"', ",", '\\"', 'for="', "for=10.0.0.1,", "a=", ";", '"\\', "=", " ", 'for=1;a=",']
)
def test_a_forwarded_header_is_read_once(piece: str):
    proxies = TrustedProxies.parse(["10.0.0.0/8"], "forwarded")
    header = lambda n: [(b"forwarded", (piece * n)[:n].encode())]  # noqa: E731
    assert disproportionate(lambda headers: proxies.client("10.0.0.1", headers), header, 200_000) == ""


def test_a_line_of_a_batch_and_a_schema_of_an_evaluation():
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}
    nested: dict[str, Make] = {
        "deep": lambda n: orjson.dumps(line)[:-1] + b',"x":' + b"[" * n + b"]" * n + b"}",
        "wide": lambda n: orjson.dumps(line | {"x": [0] * n}),
    }
    for name, make in nested.items():
        assert (
            disproportionate(lambda raw: read_line(1, raw, "/v1/chat/completions"), make, BYTES // 2) == ""
        ), name
    schemas: dict[str, Make] = {
        "expressions": lambda n: {"properties": {f"p{i}": {"pattern": rf"x{i}(\pL|\d){{1,60}}"} for i in range(n // 60)}},
        "wide": wide,
        "a list": lambda n: {"enum": ["x"] * (n // 4)},
    }  # fmt: skip
    for name, make in schemas.items():
        text = lambda n, make=make: orjson.dumps(make(n)).decode()  # noqa: E731
        assert disproportionate(json_schema, text, 60_000) == "", name


LAYERS = 4096
"""As many as a base model's config may claim."""
KINDS = [f"{part}_proj" for part in "qkvo"]


def existing(n: int) -> list[str]:
    """Modules that the base model has."""
    return [f"model.layers.{i % LAYERS}.self_attn.{KINDS[i // LAYERS % 4]}" for i in range(n)]


PATHS: dict[str, Make] = {
    "existing modules": lambda n: existing(n // 250),
    "unknown modules": lambda n: [f"model.x{i}.q_proj" for i in range(n // 220)],
    "numbers": lambda n: [f"model.layers.{'1' * 300}{i}.mlp" for i in range(n // 900)],
    "long names": lambda n: [f"{'a.' * 230}x{i}" for i in range(n // 1200)],
    "names that are too long": lambda n: ["a." * (n // 8)] * 2,
}
HEADERS: dict[str, Make] = {
    "metadata": lambda n: {"__metadata__": {f"k{i}": "v" for i in range(n // 12)}},
    "a long value": lambda n: {"__metadata__": {"k": ASTRAL * (n // 4)}},
    "lists": lambda n: {"a": [[]] * (n // 3)},
    "objects": lambda n: {"a": [{}] * (n // 3)},
    "depth": lambda n: {"a": 0} | {"b" * n: []},
}
KEYS: dict[str, Make] = {
    "the same last component": lambda n: {f"layers.{i}.self_attn.q_proj": 4 for i in range(n // 34)},
    "a choice": lambda n: {f"layers.({'|'.join(map(str, range(n // 5)))}).self_attn.q_proj": 4},
    "choices": lambda n: {f"layers.({i}|1{i}|2{i}).q_proj": 4 for i in range(n // 100)},
    "a choice with much beside it": lambda n: {f"{'a' * (n // 2)}({'|' * (n // 2)})": 4},
    "any digits": lambda n: {rf"layers.\d+{'.' * (i % 9)}{i}\d+.q_proj": 4 for i in range(n // 40)},
    "any characters": lambda n: {f"{i:08b}self_attn.q_proj".replace("0", "."): 4 for i in range(n // 34)},
    "long keys": lambda n: {f"{'a.' * 140}{i}.q_proj": 4 for i in range(n // 300)},
    "brackets": lambda n: {"(" * n: 4},
    "alternatives": lambda n: {"|" * n: 4},
}
CONFIGS: dict[str, Make] = {
    **{f"ranks: {k}": lambda n, make=make: {"rank_pattern": make(n)} for k, make in KEYS.items()},
    "alphas": lambda n: {"alpha_pattern": {f"layers.{i}.self_attn.q_proj": 8 for i in range(n // 34)}},
    "targets": lambda n: {"target_modules": [f"a{i}.q_proj" for i in range(n // 12)] + KINDS},
    "exclusions": lambda n: {"exclude_modules": [f"a{i}.q_proj" for i in range(n // 12)]},
    "parameters": lambda n: {"target_parameters": [f"mlp.e{i}.w" for i in range(n // 12)]},
    "layers": lambda n: {"layers_to_transform": list(range(n // 6))},
}


def test_an_adapters_checks(tmp_path: Path):
    """Most of an adapter's files is compared with something else in them: modules with patterns."""
    config = {"num_hidden_layers": LAYERS, "num_key_value_heads": 4}
    base = replace(LLAMA.base, config=LLAMA.config | config)

    def directory(header: dict[str, Any], **changes: Any) -> Path:
        data, raw = len(header) * 128, orjson.dumps(header)
        weights = len(raw).to_bytes(8, "little") + raw + b"\1" * data
        (tmp_path / "adapter_model.safetensors").write_bytes(weights)
        (tmp_path / "adapter_config.json").write_bytes(orjson.dumps(lora_config(kinds=KINDS, **changes)))
        return tmp_path

    def tensors(paths: list[str]) -> dict[str, Any]:
        names = [f"base_model.model.{path}.lora_{half}.weight" for path in paths for half in "AB"]
        return {
            name: {"dtype": "F16", "shape": [4, 16] if "A" in name else [16, 4], "data_offsets": [at, at + 128]}
            for at, name in zip(range(0, len(names) * 128, 128), names, strict=True)
        }  # fmt: skip

    few = tensors(existing(1000))
    shapes: dict[str, Make] = {
        **{f"paths: {k}": lambda n, make=make: directory(tensors(make(n))) for k, make in PATHS.items()},
        **{f"header: {k}": lambda n, make=make: directory(make(n)) for k, make in HEADERS.items()},
        **{k: lambda n, make=make: directory(few, **make(n // 4)) for k, make in CONFIGS.items()},
        "paths and patterns": lambda n: directory(
            tensors(existing(n // 250)), rank_pattern={f"layers.{i}.q_proj": 4 for i in range(1024)}
        ),
    }
    work = lambda path: validate(path, base=base, max_rank=8, max_bytes=1 << 30)  # noqa: E731
    size = BYTES if LONG else 128 * 1024
    failures = {k: trouble for k, make in shapes.items() if (trouble := disproportionate(work, make, size))}
    assert failures == {}
