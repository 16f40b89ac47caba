"""Any sound adapter passes; any one fault in it is refused by its code; no file that the safetensors library
would refuse, or read otherwise, passes for sound."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.errors import RejectedError
from adapters.model import BaseModel
from adapters.safetensors_header import HeaderError, read_header
from adapters.validate import AdapterFacts, validate
from tests.lora import (
    FAMILIES,
    LLAMA,
    Family,
    Tensors,
    lora_config,
    lora_tensors,
    safetensors_bytes,
    write_adapter,
)

MAX_RANK = 8
FINITE = st.floats(allow_nan=False, allow_infinity=False)
DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


@dataclass(frozen=True)
class Case:
    """An adapter and the base that it claims to fit."""

    family: Family
    config: dict[str, Any]
    tensors: Tensors
    base: BaseModel
    layers: tuple[int, ...]
    dtype: str

    def check(self) -> AdapterFacts:
        with tempfile.TemporaryDirectory() as folder:
            directory = write_adapter(Path(folder), config=self.config, tensors=self.tensors)
            return validate(directory, base=self.base, max_rank=MAX_RANK, max_bytes=10_000_000)

    def configured(self, **changes: Any) -> Case:
        return replace(self, config=self.config | changes)

    def renamed(self, old: str, new: str) -> Case:
        return replace(self, tensors={new if n == old else n: t for n, t in self.tensors.items()})


@st.composite
def sound(draw: st.DrawFn) -> Case:
    family = draw(st.sampled_from(FAMILIES))
    leaves = sorted(module.rpartition(".")[2] for module in family.modules)
    outside = sorted(module.rpartition(".")[2] for module in family.outside)
    kinds = draw(st.lists(st.sampled_from(leaves), min_size=1, unique=True))
    if outside:
        kinds += draw(st.lists(st.sampled_from(outside), unique=True))
    rank = draw(st.integers(1, MAX_RANK))
    layers = tuple(sorted(draw(st.sets(st.integers(0, family.layers - 1), min_size=1))))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    tensors = lora_tensors(family, rank=rank, kinds=tuple(kinds), layers=layers, dtype=dtype)
    tensors = dict(draw(st.permutations(list(tensors.items()))))
    config = lora_config(
        rank=rank,
        kinds=tuple(kinds),
        lora_alpha=draw(st.integers(1, 64) | st.floats(0.01, 64)),
        use_rslora=draw(st.booleans()),
    )
    return Case(family, config, tensors, family.base, layers, dtype)


def some_tensor(draw: st.DrawFn, case: Case, containing: str = "") -> str:
    return draw(st.sampled_from([name for name in case.tensors if containing in name]))


def in_layers(draw: st.DrawFn, case: Case) -> str:
    return some_tensor(draw, case, ".layers.")


def raise_rank(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(r=draw(st.integers(MAX_RANK + 1, 60_000)))


def break_rank(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(r=draw(st.integers(max_value=0) | st.booleans() | st.text() | FINITE | st.none()))


def lie_about_rank(draw: st.DrawFn, case: Case) -> Case:
    ranks = [rank for rank in range(1, MAX_RANK + 1) if rank != case.config["r"]]
    return case.configured(r=draw(st.sampled_from(ranks)))


def break_alpha(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(
        lora_alpha=draw(
            st.integers(max_value=0) | FINITE.map(lambda x: -abs(x)) | st.booleans() | st.text() | st.none()
        )
    )


def other_method(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(peft_type=draw(st.text().filter(lambda text: text != "LORA") | st.none()))


def other_base(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(base_model_name_or_path=draw(st.sampled_from(["tiny/other", "base", "x/tiny"])))


def unsupported(draw: st.DrawFn, case: Case) -> Case:
    change = draw(
        st.sampled_from([{"use_dora": True}, {"bias": "all"}, {"modules_to_save": ["embed_tokens"]}])
    )
    return case.configured(**change)


def no_targets(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(target_modules=draw(st.sampled_from([None, [], "", {}, [1], 7])))


def untargeted(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(target_modules=["something_else", *case.config["target_modules"][1:]])


def target_left_out(draw: st.DrawFn, case: Case) -> Case:
    kinds = case.config["target_modules"]
    others = [m.rpartition(".")[2] for m in case.family.modules if m.rpartition(".")[2] not in kinds]
    if not others:
        kind = kinds[0]
        tensors = {n: t for n, t in case.tensors.items() if f".{kind}." not in n}
        return replace(case, tensors=tensors or {"base_model.model.x": ("F32", (1,))})
    return case.configured(target_modules=[*kinds, others[0]])


def other_shape(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    dtype, shape = case.tensors[name]
    wrong = draw(
        st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple).filter(lambda other: other != shape)
    )
    return replace(case, tensors=case.tensors | {name: (dtype, wrong)})


def transposed(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    dtype, (rows, columns) = case.tensors[name]
    columns += rows == columns  # a square one would stay as it is
    return replace(case, tensors=case.tensors | {name: (dtype, (columns, rows))})


def other_dtype(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    wrong = (draw(st.sampled_from(["F64", "I8", "I32"])), case.tensors[name][1])
    return replace(case, tensors=case.tensors | {name: wrong})


def half_missing(draw: st.DrawFn, case: Case) -> Case:
    missing = some_tensor(draw, case)
    return replace(case, tensors={n: t for n, t in case.tensors.items() if n != missing})


def other_module(draw: st.DrawFn, case: Case) -> Case:
    name = in_layers(draw, case)
    return case.renamed(name, name.replace("_proj", "_porj"))


def other_layer(draw: st.DrawFn, case: Case) -> Case:
    name = in_layers(draw, case)
    layer = draw(st.integers(case.family.layers, 99_999))
    head, _, tail = name.partition(".layers.")
    return case.renamed(name, f"{head}.layers.{layer}.{tail.partition('.')[2]}")


def other_name(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    changes = [name + ".x", name.replace("lora_", "lora-"), name.removeprefix("base_model."), "x", "ü" + name]
    return case.renamed(name, draw(st.sampled_from(changes)))


def nothing(draw: st.DrawFn, case: Case) -> Case:
    return replace(case, tensors={})


def no_config(draw: st.DrawFn, case: Case) -> Case:
    return replace(case, base=replace(case.base, config=None))


def strange_base(draw: st.DrawFn, case: Case) -> Case:
    config = {**(case.base.config or {}), "architectures": [draw(st.text())]}
    return replace(case, base=replace(case.base, config=config))


FAULTS: dict[Callable[[st.DrawFn, Case], Case], set[str]] = {
    raise_rank: {"rank_too_high"},
    break_rank: {"rank_invalid"},
    lie_about_rank: {"shape_mismatch"},
    break_alpha: {"alpha_invalid"},
    other_method: {"not_lora"},
    other_base: {"base_mismatch"},
    unsupported: {"unsupported_feature"},
    no_targets: {"target_modules_invalid"},
    untargeted: {"module_not_targeted"},
    target_left_out: {"target_without_tensors", "tensor_name_invalid"},
    other_shape: {"shape_mismatch"},
    transposed: {"shape_mismatch"},
    other_dtype: {"dtype_unsupported"},
    half_missing: {"tensor_unpaired"},
    other_module: {"module_not_in_base"},
    other_layer: {"layer_out_of_range"},
    other_name: {"tensor_name_invalid"},
    nothing: {"no_tensors"},
    no_config: {"base_config_missing"},
    strange_base: {"unknown_architecture"},
}
"""A fault, and the codes of which at least one must be found."""


@given(case=sound())
@settings(max_examples=60, deadline=None)
def test_sound_adapters_pass(case):
    facts = case.check()
    assert facts.rank == case.config["r"]
    assert facts.modules == tuple(sorted(case.config["target_modules"]))
    assert facts.tensors == len(case.tensors)
    assert facts.dtypes == (DTYPES[case.dtype],)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_one_fault_is_refused_by_its_code(fault, data):
    case = fault(data.draw, data.draw(sound()))
    with pytest.raises(RejectedError) as caught:
        case.check()
    assert FAULTS[fault] & {finding.code for finding in caught.value.findings}


SMALL = safetensors_bytes(
    {
        "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": ("F16", (1, 2)),
        "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight": ("F32", (2, 1)),
    }
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """The bytes of a small sound file, after a few edits of bytes, pieces or numbers."""
    raw = bytearray(SMALL)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(raw)))
        match draw(st.sampled_from(["set", "insert", "cut", "repeat"])):
            case "set":
                raw[at : at + 1] = draw(
                    st.binary(min_size=1, max_size=1) | st.sampled_from([b"0", b"1", b'"', b"}"])
                )
            case "insert":
                raw[at:at] = draw(st.binary(max_size=4))
            case "cut":
                del raw[at : at + draw(st.integers(1, 40))]
            case "repeat":
                raw[at:at] = raw[at : at + draw(st.integers(1, 40))]
    if draw(st.booleans()):  # the edits may have moved the header's end: let its length fit again
        length = bytes(raw).rfind(b"}", 8) + 1 - 8
        raw[:8] = max(length, 0).to_bytes(8, "little")
    return bytes(raw)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BOOL", "I64", "F8_E4M3", "F4", "C64", "f32"]) | values,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | values,
        "data_offsets": st.tuples(st.integers(0, 12), st.integers(0, 24)).map(list) | values,
    },
    optional={"extra": values},
)


@st.composite
def invented(draw: st.DrawFn) -> bytes:
    """A header of about the right form, with data of about the right length."""
    names = st.sampled_from(["a", "b", "__metadata__", "\ud800"])
    header = json.dumps(draw(st.dictionaries(names, entries | values, max_size=3))).encode()
    return len(header).to_bytes(8, "little") + header + bytes(draw(st.integers(0, 24)))


@given(raw=damaged() | invented())
@example(raw=SMALL)
@settings(max_examples=600, deadline=None)
def test_what_passes_for_sound_the_library_reads_alike(raw):
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(raw)
        try:
            ours = read_header(Path(file.name))
        except HeaderError:
            return
    theirs = {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in safetensors.deserialize(raw)}
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in ours.items()} == theirs


@given(case=sound())
@settings(max_examples=20, deadline=None)
def test_what_the_library_takes_from_us_is_what_we_read(case):
    raw = safetensors_bytes(case.tensors)
    assert {n: (e["dtype"], tuple(e["shape"])) for n, e in safetensors.deserialize(raw)} == case.tensors


@given(raw=st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=100, deadline=None)
def test_no_config_brings_the_checks_down(raw):
    with tempfile.TemporaryDirectory() as folder:
        directory = write_adapter(Path(folder))
        (directory / "adapter_config.json").write_bytes(raw)
        with pytest.raises(RejectedError):
            validate(directory, base=LLAMA.base, max_rank=MAX_RANK, max_bytes=10_000_000)


@given(key=st.sampled_from(sorted(lora_config())), value=values)
@settings(max_examples=150, deadline=None)
def test_no_value_of_a_setting_brings_the_checks_down(key, value):
    with tempfile.TemporaryDirectory() as folder:
        directory = write_adapter(Path(folder), config=lora_config(**{key: value}))
        try:
            facts = validate(directory, base=LLAMA.base, max_rank=MAX_RANK, max_bytes=10_000_000)
        except RejectedError:
            return
    assert facts.rank <= MAX_RANK
    assert facts.modules == ("q_proj", "v_proj")


@given(config=st.dictionaries(st.sampled_from(sorted(LLAMA.config)), values), merged=st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_base_config_brings_the_checks_down(config, merged):
    base = BaseModel("tiny/base", (), {**LLAMA.config, **config} if merged else config)
    with tempfile.TemporaryDirectory() as folder:
        directory = write_adapter(Path(folder))
        try:
            validate(directory, base=base, max_rank=MAX_RANK, max_bytes=10_000_000)
        except RejectedError:
            return
    assert merged
