"""Each fault and each oddity, with the code by which it must be found."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from tests.broken.case import Case
from tests.broken.config_faults import (
    absurd_base,
    alpha_is_no_number,
    break_alpha,
    break_pattern,
    break_rank,
    excluded,
    in_another_layer,
    lie_about_rank,
    no_alpha,
    no_base_config,
    no_json,
    no_targets,
    other_base,
    other_method,
    output_of_all_linear,
    raise_rank,
    raise_rank_of_one,
    strange_base,
    target_left_out,
    twice,
    unnamed_base,
    unsupported,
    untargeted,
)
from tests.broken.file_faults import (
    absurd_header,
    cut_short,
    half_missing,
    idle,
    more_tokens,
    named_twice,
    not_a_number,
    nothing,
    one_too_small,
    other_dtype,
    other_layer,
    other_module,
    other_name,
    other_root,
    other_shape,
    overflowing,
    overlapping,
    resized,
    trailing,
    transposed,
)
from tests.broken.oddities import (
    far_scaling,
    idle_module,
    mixed_types,
    more_weights,
    other_template,
    revised,
    rubbish_beside,
    stranger_beside,
    template_of_unknown,
)

FAULTS: dict[Callable[[st.DrawFn, Case], Case], set[str]] = {
    raise_rank: {"rank_too_high"},
    raise_rank_of_one: {"rank_too_high"},
    break_rank: {"rank_invalid"},
    lie_about_rank: {"shape_mismatch"},
    break_alpha: {"alpha_invalid"},
    no_alpha: {"alpha_invalid"},
    alpha_is_no_number: {"config_invalid"},
    break_pattern: {"pattern_invalid"},
    other_method: {"not_lora"},
    unsupported: {"unsupported_feature"},
    no_targets: {"target_modules_invalid"},
    untargeted: {"module_not_targeted"},
    excluded: {"module_not_targeted"},
    in_another_layer: {"module_not_targeted"},
    output_of_all_linear: {"module_not_targeted"},
    target_left_out: {"target_without_tensors"},
    twice: {"config_invalid"},
    no_json: {"config_invalid"},
    other_base: {"base_mismatch"},
    unnamed_base: {"base_unnamed"},
    no_base_config: {"base_config_missing"},
    strange_base: {"unknown_architecture"},
    absurd_base: {"base_config_invalid"},
    other_shape: {"shape_mismatch"},
    transposed: {"shape_mismatch"},
    one_too_small: {"shape_mismatch"},
    other_dtype: {"dtype_unsupported"},
    half_missing: {"tensor_unpaired"},
    other_module: {"module_not_in_base"},
    other_root: {"module_not_in_base"},
    other_layer: {"layer_out_of_range"},
    other_name: {"tensor_name_invalid"},
    nothing: {"no_tensors"},
    resized: {"vocabulary_changed"},
    not_a_number: {"weights_not_finite"},
    overflowing: {"weights_overflow"},
    idle: {"no_effect"},
    cut_short: {"header_invalid"},
    trailing: {"header_invalid"},
    absurd_header: {"header_invalid"},
    overlapping: {"header_invalid"},
    named_twice: {"header_invalid"},
    more_tokens: {"vocabulary_changed"},
}
"""A fault, and the codes of which at least one must be found."""

OF_SHAPES = frozenset({other_shape, transposed, one_too_small, lie_about_rank})
"""Faults of which one may undo another."""

ODDITIES: dict[Callable[[st.DrawFn, Case], Case], str] = {
    other_template: "chat_template_differs",
    template_of_unknown: "chat_template_unknown",
    mixed_types: "mixed_dtypes",
    idle_module: "module_without_effect",
    far_scaling: "scaling_extreme",
    revised: "base_revision_unsure",
    rubbish_beside: "file_invalid",
    more_weights: "other_weights",
    stranger_beside: "files_ignored",
}
"""An oddity, and the code of its warning."""
