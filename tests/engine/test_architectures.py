"""The table of architectures against the libraries that it was made from.

For every architecture, transformers and vLLM build a model of another config, on the meta device, and each
module is compared. A new release of either shows here what changed: `python -m tests.tools.architectures`. What is built
and what it is compared with are both pinned, so that the short form takes a part, the same every time.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from adapters.checks.architectures import table
from adapters.checks.findings import Findings
from adapters.checks.shapes import BaseShapes, base_shapes
from deploy.demo.engine_env import EngineEnv
from tests.engine.libraries import COMPARED, told_by


@pytest.fixture(scope="module")
def printed(engine_env: EngineEnv) -> tuple[dict[str, Any], dict[str, Any]]:
    built, rows, _ = told_by(engine_env.python)
    return built, rows


def shapes_of(name: str, config: dict[str, Any]) -> BaseShapes:
    findings = Findings()
    shapes = base_shapes(name, config, findings)
    assert shapes, [finding.found for finding in findings.all()]
    return shapes


def test_every_module_is_as_the_libraries_build_it(printed: tuple[dict[str, Any], dict[str, Any]]) -> None:
    built, _ = printed
    assert sorted(built) == sorted(COMPARED)
    for name, models in built.items():
        for told in models:
            assert "problem" not in told, (name, told)
            compare(name, told)


def compare(name: str, told: dict[str, Any]) -> None:
    shapes = shapes_of(name, told["config"])
    for path, sizes in told["library"].items():
        if located := shapes.locate(path):
            assert tuple(sizes) in shapes.modules[located[2]].sizes_in(located[1]), (name, path)
            assert shapes.beyond(path, located[2]) is None, (name, path)
    reached: dict[str, set[int]] = {}
    trained = {shapes.engine_path(path) for path in told["library"]}
    for path, (size_in, size_out) in told["engine"].items():
        if located := shapes._located(path):  # the engine's own name
            layer = number_in(path)
            known = shapes.modules[located].sizes_in(layer)
            if not known and path not in trained:  # a slot for what no adapter can have: Gemma 4's values
                continue
            reached.setdefault(located, set()).add(layer)
            assert any(i == size_in and size_out in (o, None) for i, o in known), (name, path, known)
    for path, (number, hidden, inner) in told["experts"].items():
        for pattern in shapes.experts.get(shapes._pattern(path), ()):
            module = shapes.modules[pattern]
            reached.setdefault(pattern, set()).add(number_in(path))
            assert number in (module.copies, *module.limits[1:]), (name, path)
            assert module.sizes[0] in ((hidden, inner), (inner, hidden), (hidden, 2 * inner)), (name, path)
    assert reached.keys() == shapes.modules.keys(), (name, shapes.modules.keys() - reached.keys())
    for pattern, layers in reached.items():  # and in no other layer
        assert not shapes.modules[pattern].limits or layers == set(shapes.modules[pattern].present()), (
            name,
            pattern,
        )
    for path, sizes in shapes.outside.items():
        assert list(sizes) == told["embeddings"][path], (name, path)


def number_in(path: str) -> int:
    found = re.search(r"(?<=\.)\d+(?=\.|$)", path)
    return int(found[0]) if found else 0


def test_the_libraries_give_the_committed_table(printed: tuple[dict[str, Any], dict[str, Any]]) -> None:
    _, probed = printed
    assert probed["vllm"] == table()["vllm"]
    assert probed["transformers"] == table()["transformers"]
    assert probed["architectures"] == {name: table()["architectures"][name] for name in COMPARED}
