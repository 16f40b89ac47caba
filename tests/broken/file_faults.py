"""What can be wrong with the tensors, the weights, the weight file, and the files beside it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hypothesis import strategies as st

from tests.broken.case import (
    CannotBreakError,
    Case,
    fault,
    in_layers,
    some_tensor,
)
from tests.support.lora import BYTES


@fault("shape_mismatch")
def other_shape(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    dtype, shape = case.tensors[name]
    wrong = draw(
        st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple).filter(lambda other: other != shape)
    )
    return replace(case, tensors=case.tensors | {name: (dtype, wrong)})


@fault("shape_mismatch")
def transposed(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    dtype, shape = case.tensors[name]
    rows, columns = shape[0], shape[-1]
    columns += rows == columns  # a square one would stay as it is
    return replace(case, tensors=case.tensors | {name: (dtype, (columns, rows))})


@fault("shape_mismatch")
def one_too_small(draw: st.DrawFn, case: Case) -> Case:
    """What an engine fills up with zeros."""
    name = some_tensor(draw, case)
    dtype, shape = case.tensors[name]
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    if not axes:
        raise CannotBreakError
    axis = draw(st.sampled_from(axes))
    smaller = tuple(size - (i == axis) for i, size in enumerate(shape))
    return replace(case, tensors=case.tensors | {name: (dtype, smaller)})


@fault("dtype_unsupported")
def other_dtype(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    wrong = (draw(st.sampled_from(["F64", "I8", "I32"])), case.tensors[name][1])
    return replace(case, tensors=case.tensors | {name: wrong})


@fault("tensor_unpaired")
def half_missing(draw: st.DrawFn, case: Case) -> Case:
    missing = some_tensor(draw, case)
    return replace(case, tensors={n: t for n, t in case.tensors.items() if n != missing})


@fault("module_not_in_base")
def other_module(draw: st.DrawFn, case: Case) -> Case:
    name = in_layers(draw, case)
    return case.renamed(name, name.replace("_proj", "_porj"))


@fault("module_not_in_base")
def other_root(draw: st.DrawFn, case: Case) -> Case:
    """Names that match nothing in the base: engines pass over them and answer as the base."""
    root = draw(st.sampled_from(["transformer", "model.model", "language_model.model.model", "vision_tower"]))
    old = f"base_model.model.{case.family.root}.layers."
    tensors = {n.replace(old, f"base_model.model.{root}.layers."): t for n, t in case.tensors.items()}
    if tensors == case.tensors:
        raise CannotBreakError
    return replace(case, tensors=tensors)


@fault("layer_out_of_range")
def other_layer(draw: st.DrawFn, case: Case) -> Case:
    name = in_layers(draw, case)
    layer = draw(st.integers(case.family.layers, 99_999))
    head, _, tail = name.partition(".layers.")
    return case.renamed(name, f"{head}.layers.{layer}.{tail.partition('.')[2]}")


@fault("tensor_name_invalid")
def other_name(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    changes = [name + ".x", name.replace("lora_", "lora-"), "base_model.model." + name, "x", "ü" + name]
    return case.renamed(name, draw(st.sampled_from(changes)))


@fault("no_tensors")
def nothing(draw: st.DrawFn, case: Case) -> Case:
    del draw
    return replace(case, tensors={})


@fault("vocabulary_changed")
def resized(draw: st.DrawFn, case: Case) -> Case:
    name = draw(
        st.sampled_from(
            [
                "base_model.model.model.embed_tokens.weight",
                "base_model.model.lm_head.weight",
                "base_model.model.lm_head.base_layer.weight",
                "base_model.model.model.embed_tokens.modules_to_save.default.weight",
            ]
        )
    )
    return replace(case, tensors=case.tensors | {name: (case.dtype, (draw(st.integers(65, 70)), 2))})


# -- the weights


@fault("weights_not_finite")
def not_a_number(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    value = draw(st.sampled_from([math.nan, -math.nan, math.inf, -math.inf]))
    return case.holding([name], value, draw(st.integers(0, 2**20)))


@fault("weights_overflow")
def overflowing(draw: st.DrawFn, case: Case) -> Case:
    names = case.halves("B")
    if not names:
        raise CannotBreakError
    sharp = case.configured(lora_alpha=32, alpha_pattern={}, use_rslora=False)
    return sharp.holding([draw(st.sampled_from(names))], draw(st.sampled_from([60_000.0, -40_000.0])), 0)


@fault("no_effect")
def idle(draw: st.DrawFn, case: Case) -> Case:
    """An adapter as it is before training."""
    return case.holding(case.halves(draw(st.sampled_from("AB"))), draw(st.sampled_from([0.0, -0.0])))


# -- the weight file


@fault("header_invalid")
def cut_short(draw: st.DrawFn, case: Case) -> Case:
    cut = draw(st.integers(1, 60))
    return replace(case, damage=(*case.damage, lambda raw: raw[:-cut]))


@fault("header_invalid")
def trailing(draw: st.DrawFn, case: Case) -> Case:
    more = draw(st.binary(min_size=1, max_size=20))
    return replace(case, damage=(*case.damage, lambda raw: raw + more))


@fault("header_invalid")
def absurd_header(draw: st.DrawFn, case: Case) -> Case:
    length = draw(st.integers(2**24 + 1, 2**64 - 1))
    return replace(case, damage=(*case.damage, lambda raw: length.to_bytes(8, "little") + raw[8:]))


@fault("header_invalid")
def overlapping(draw: st.DrawFn, case: Case) -> Case:
    """Two tensors of the same bytes, or a gap between two."""
    if len(case.tensors) < 2:
        raise CannotBreakError
    shift = draw(st.sampled_from([-1, 1])) * BYTES[case.dtype]

    def shifted(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        last = list(header)[-1]
        header[last]["data_offsets"] = [offset + shift for offset in header[last]["data_offsets"]]
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + raw[8 + length :] + bytes(max(shift, 0))

    return replace(case, damage=(*case.damage, shifted))


@fault("header_invalid")
def named_twice(draw: st.DrawFn, case: Case) -> Case:
    name = json.dumps(some_tensor(draw, case))

    def doubled(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        text = raw[8 : 8 + length].rstrip()
        entry = json.dumps(json.loads(text)[json.loads(name)])
        text = text[:-1] + f", {name}: {entry}}}".encode()
        return len(text).to_bytes(8, "little") + text + raw[8 + length :]

    return replace(case, damage=(*case.damage, doubled))


# -- beside the two files


@fault("vocabulary_changed")
def more_tokens(draw: st.DrawFn, case: Case) -> Case:
    number = draw(st.integers(_vocabulary(case), 2**31))
    return draw(
        st.sampled_from(
            [
                case.with_file("added_tokens.json", {"<new>": number}),
                case.with_file(
                    "tokenizer_config.json", {"added_tokens_decoder": {str(number): {"content": "<n>"}}}
                ),
                case.with_file("tokenizer.json", {"added_tokens": [{"id": number, "content": "<new>"}]}),
            ]
        )
    )


def _vocabulary(case: Case) -> int:
    config = case.base.config or {}
    return int(config.get("vocab_size") or 262_208)
