"""Any sound adapter passes; any one fault in it is refused by its code; no file that the safetensors library
would refuse, or read otherwise, passes for sound."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
from hypothesis import assume, example, given
from hypothesis import strategies as st

from adapters.checks.safetensors_header import HeaderError, read_header
from adapters.checks.validate import AdapterFacts, validate
from adapters.errors import RejectedError
from adapters.model import BaseModel
from tests.broken.case import DTYPES, MAX_RANK, CannotBreakError, Case, sound
from tests.broken.table import FAULTS, ODDITIES, OF_SHAPES
from tests.support.lora import LLAMA, lora_config, safetensors_bytes, write_adapter
from tests.support.search import examples


def check(case: Case) -> AdapterFacts:
    with tempfile.TemporaryDirectory() as folder:
        directory = case.write(Path(folder))
        return validate(directory, base=case.base, max_rank=MAX_RANK, max_bytes=10_000_000)


@given(case=sound())
@examples(40)
def test_sound_adapters_pass(case):
    facts = check(case)
    assert facts.rank == max(case.config["r"], *case.config["rank_pattern"].values(), 0)
    assert facts.modules == tuple(sorted({n.partition(".lora_")[0].rpartition(".")[2] for n in case.tensors}))
    assert facts.tensors == len(case.tensors)
    assert facts.dtypes == (DTYPES[case.dtype],)
    assert {warning.code for warning in facts.warnings} == set()


def changed(data: st.DataObject, change: Callable[[st.DrawFn, Case], Case]) -> Case:
    """A sound adapter of which one thing is broken, or odd."""
    try:
        return change(data.draw, data.draw(sound()))
    except CannotBreakError:
        assume(False)
        raise


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
@given(data=st.data())
@examples(6)
def test_one_fault_is_refused_by_its_code(fault, data):
    case = changed(data, fault)
    with pytest.raises(RejectedError) as caught:
        check(case)
    assert FAULTS[fault] in {finding.code for finding in caught.value.findings}
    assert all(finding.remedy for finding in caught.value.findings)


SHOWN_BY_THE_BASE = frozenset(
    {"no_base_config", "strange_base", "absurd_base", "other_shape", "transposed", "one_too_small"}
    | {"other_module", "other_root", "other_layer", "target_left_out", "resized", "more_tokens"}
)
"""Faults that only the base model's shapes, or its vocabulary, show."""


def vouched_for(case: Case) -> AdapterFacts:
    """Check it for a base model of unknown architecture."""
    config = (case.base.config or {}) | {"architectures": ["TomorrowForCausalLM"]}
    with tempfile.TemporaryDirectory() as folder:
        directory, base = case.write(Path(folder)), replace(case.base, config=config)
        return validate(directory, base=base, max_rank=MAX_RANK, max_bytes=10_000_000, unverified_shapes=True)


@given(case=sound())
@examples(20)
def test_sound_adapters_pass_unverified_and_are_marked(case):
    facts = vouched_for(case)
    assert facts.unverified_shapes
    assert {warning.code for warning in facts.warnings} == {"shapes_unverified"}
    assert replace(facts, warnings=(), unverified_shapes=False) == check(case)


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.__name__ not in SHOWN_BY_THE_BASE], ids=lambda f: f.__name__
)
@given(data=st.data())
@examples(3)
def test_unverified_shapes_excuse_no_other_fault(fault, data):
    case = changed(data, fault)
    with pytest.raises(RejectedError) as caught:
        vouched_for(case)
    alone = "tensor_unpaired"  # what a wrong name leaves behind
    assert {FAULTS[fault], alone} & {finding.code for finding in caught.value.findings}


@pytest.mark.parametrize("oddity", ODDITIES, ids=lambda o: o.__name__)
@given(data=st.data())
@examples(6)
def test_what_is_odd_passes_with_its_warning(oddity, data):
    case = changed(data, oddity)
    assert ODDITIES[oddity] in {warning.code for warning in check(case).warnings}


@given(data=st.data())
@examples(40)
def test_of_several_faults_at_least_one_is_found(data):
    case, codes = data.draw(sound()), set()
    faults = data.draw(st.lists(st.sampled_from(list(FAULTS)), min_size=2, max_size=5, unique=True))
    assume(sum(fault in OF_SHAPES for fault in faults) < 2)
    for fault in faults:
        try:
            case = fault(data.draw, case)
        except CannotBreakError:
            continue
        codes.add(FAULTS[fault])
    assume(codes)
    with pytest.raises(RejectedError) as caught:
        check(case)
    assert codes & {finding.code for finding in caught.value.findings}


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
@examples(250)
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
@examples(20)
def test_what_the_library_takes_from_us_is_what_we_read(case):
    raw = safetensors_bytes(case.tensors)
    assert {n: (e["dtype"], tuple(e["shape"])) for n, e in safetensors.deserialize(raw)} == case.tensors


@given(raw=st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
@examples(50)
def test_no_config_brings_the_checks_down(raw):
    with tempfile.TemporaryDirectory() as folder:
        directory = write_adapter(Path(folder))
        (directory / "adapter_config.json").write_bytes(raw)
        with pytest.raises(RejectedError):
            validate(directory, base=LLAMA.base, max_rank=MAX_RANK, max_bytes=10_000_000)


@given(key=st.sampled_from(sorted(lora_config())), value=values)
@examples(50)
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
@examples(50)
def test_no_base_config_brings_the_checks_down(config, merged):
    base = BaseModel("tiny/base", (), {**LLAMA.config, **config} if merged else config)
    with tempfile.TemporaryDirectory() as folder:
        directory = write_adapter(Path(folder))
        try:
            validate(directory, base=base, max_rank=MAX_RANK, max_bytes=10_000_000)
        except RejectedError:
            return
    assert merged
