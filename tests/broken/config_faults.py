"""What can be wrong with adapter_config.json, and with the base model that it is held to."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.broken.case import (
    FINITE,
    MAX_RANK,
    CannotBreakError,
    Case,
    fault,
    in_layers,
    some_tensor,
)


@fault("rank_too_high")
def raise_rank(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(r=draw(st.integers(MAX_RANK + 1, 60_000)))


@fault("rank_too_high")
def raise_rank_of_one(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(rank_pattern={"q_proj": draw(st.integers(MAX_RANK + 1, 60_000))})


@fault("rank_invalid")
def break_rank(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(r=draw(st.integers(max_value=0) | st.booleans() | st.text() | FINITE | st.none()))


@fault("shape_mismatch")
def lie_about_rank(draw: st.DrawFn, case: Case) -> Case:
    used = {case.config["r"], *(shape[0] for name, (_, shape) in case.tensors.items() if "_A" in name)}
    ranks = [rank for rank in range(1, MAX_RANK + 1) if rank not in used]
    return case.configured(r=draw(st.sampled_from(ranks)), rank_pattern={})


@fault("alpha_invalid")
def break_alpha(draw: st.DrawFn, case: Case) -> Case:
    wrong = st.integers(max_value=0) | FINITE.map(lambda x: -abs(x)) | st.booleans() | st.text() | st.none()
    huge = st.floats(1e30, 1e300) | st.just(10**400)
    return case.configured(lora_alpha=draw(wrong | huge))


@fault("alpha_invalid")
def no_alpha(draw: st.DrawFn, case: Case) -> Case:
    del draw
    return replace(case, config={k: v for k, v in case.config.items() if k != "lora_alpha"})


@fault("config_invalid")
def alpha_is_no_number(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(lora_alpha=draw(st.sampled_from([math.nan, math.inf, -math.inf])))


@fault("pattern_invalid")
def break_pattern(draw: st.DrawFn, case: Case) -> Case:
    key = draw(st.sampled_from(["rank_pattern", "alpha_pattern"]))
    bad = [
        {"q_proj": 0},
        {"q_proj": -2},
        {"q_proj": "4"},
        {"(a+)+b": 4},
        {".*.*": 4},
        {"(q|v)(_|x)proj": 4},
        ["q_proj"],
        {"": 4},
        7,
    ]
    return case.configured(**{key: draw(st.sampled_from(bad))})


@fault("not_lora")
def other_method(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(peft_type=draw(st.text().filter(lambda text: text != "LORA") | st.none()))


@fault("unsupported_feature")
def unsupported(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(**draw(st.sampled_from(UNSUPPORTED)))


UNSUPPORTED: tuple[dict[str, Any], ...] = (
    {"use_dora": True},
    {"bias": "all"},
    {"bias": "lora_only"},
    {"bias": None},
    {"lora_bias": True},
    {"modules_to_save": ["embed_tokens"]},
    {"modules_to_save": ["score"]},
    {"layer_replication": [[0, 2]]},
    {"alora_invocation_tokens": [3]},
    {"trainable_token_indices": [5]},
    {"trainable_token_indices": {"embed_tokens": [5]}},
    {"enable_lora": [True, False]},
    {"use_tomorrows_lora": True},
    {"use_qalora": True},
    {"use_bdlora": {"nblocks": 2}},
    {"arrow_config": {"top_k": 2}},
    {"kasa_config": {"beta": 1e-4}},
    {"monteclora_config": {"x": 1}},
    {"ensure_weight_tying": True, "target_modules": "all-linear"},
    {"init_lora_weights": "pissa"},
    {"init_lora_weights": "pissa_niter_4"},
    {"init_lora_weights": "olora"},
    {"init_lora_weights": "corda", "corda_config": {"corda_method": "kpm"}},
    {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}},
    {"use_rslora": "yes"},
    {"fan_in_fan_out": 1},
    {"task_type": "SEQ_CLS"},
    {"task_type": "TOKEN_CLS"},
)


@fault("target_modules_invalid")
def no_targets(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(target_modules=draw(st.sampled_from([None, [], "", {}, [1], 7])))


@fault("module_not_targeted")
def untargeted(draw: st.DrawFn, case: Case) -> Case:
    kinds = {name.partition(".lora_")[0].rpartition(".")[2] for name in case.tensors}
    if not kinds:
        raise CannotBreakError
    gone = draw(st.sampled_from(sorted(kinds)))
    return case.configured(target_modules=["something_else", *sorted(kinds - {gone})])


@fault("module_not_targeted")
def excluded(draw: st.DrawFn, case: Case) -> Case:
    path = some_tensor(draw, case).removeprefix("base_model.model.").partition(".lora_")[0]
    return case.configured(exclude_modules=[draw(st.sampled_from([path, path.rpartition(".")[2]]))])


@fault("module_not_targeted")
def in_another_layer(draw: st.DrawFn, case: Case) -> Case:
    in_layers(draw, case)
    return case.configured(layers_to_transform=draw(st.sampled_from([99, [99]])))


@fault("module_not_targeted")
def output_of_all_linear(draw: st.DrawFn, case: Case) -> Case:
    some_tensor(draw, case, "lm_head")
    return case.configured(target_modules="all-linear")


@fault("target_without_tensors")
def target_left_out(draw: st.DrawFn, case: Case) -> Case:
    del draw
    kinds = sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in case.tensors})
    others = [m.rpartition(".")[2] for m in case.family.modules if m.rpartition(".")[2] not in kinds]
    if not others:
        raise CannotBreakError
    return case.configured(target_modules=[*kinds, others[0]])


@fault("config_invalid")
def twice(draw: st.DrawFn, case: Case) -> Case:
    key = draw(st.sampled_from(sorted(case.config)))
    text = json.dumps(case.config)
    return replace(case, config_text=f"{text[:-1]}, {json.dumps(key)}: {json.dumps(case.config[key])}}}")


@fault("config_invalid")
def no_json(draw: st.DrawFn, case: Case) -> Case:
    text = json.dumps(case.config)
    return replace(case, config_text=text[: draw(st.integers(0, len(text) - 1))])


# -- the base model


@fault("base_mismatch")
def other_base(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(base_model_name_or_path=draw(st.sampled_from(["tiny/other", "tiny-7b", "x/tiny"])))


@fault("base_unnamed")
def unnamed_base(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(base_model_name_or_path=draw(st.sampled_from([None, "", "  ", 7, ["tiny/base"]])))


@fault("base_config_missing")
def no_base_config(draw: st.DrawFn, case: Case) -> Case:
    del draw
    return replace(case, base=replace(case.base, config=None))


@fault("unknown_architecture")
def strange_base(draw: st.DrawFn, case: Case) -> Case:
    config = {**(case.base.config or {}), "architectures": [draw(st.text())]}
    return replace(case, base=replace(case.base, config=config))


@fault("base_config_invalid")
def absurd_base(draw: st.DrawFn, case: Case) -> Case:
    config = dict(case.base.config or {})
    sizes = draw(st.sampled_from([-1, 0, 2**40, "16", None, 1.5]))
    config = {**config, "hidden_size": sizes}
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = {**config["text_config"], "hidden_size": sizes}
    return replace(case, base=replace(case.base, config=config))
