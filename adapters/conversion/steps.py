"""What an adapter does to each weight of its base model, and whether that can be had at all. Reads headers;
the weights are read when a step is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from adapters.checks.findings import shown
from adapters.checks.tokenizer_files import FileInvalidError, tokens_beyond
from adapters.conversion.adapter_files import Module, SourceAdapter
from adapters.conversion.base_weights import BaseWeights
from adapters.conversion.changes import Change, Saved, dora
from adapters.conversion.factors import Factors, joined
from adapters.conversion.refusals import Refusals
from adapters.conversion.weight_files import StoredTensor

PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
INTO_BASE = "Write a merged model with `florin adapter merge DIR --into-base BASE --out OUT`, and serve that."


@dataclass(frozen=True, slots=True)
class Step:
    path: str
    """The module: `lm_head`."""
    base: StoredTensor
    embedding: bool
    """An embedding layer, whose factors have names of their own."""
    transposed: bool
    """The base weight is stored as (in, out)."""
    make: Callable[[], Factors | Change]
    """Reads the weights. Factors where the change has low rank already."""
    tied: bool = False
    """The same change once more, for lm_head, which uses the input embeddings."""


def steps_of(
    source: SourceAdapter, base: BaseWeights, initial: SourceAdapter | None, refusals: Refusals
) -> list[Step]:
    """Adds every reason against it to `refusals`."""
    _check_initial(source, initial, refusals)
    steps = [
        step
        for path, module in source.modules.items()
        if (step := _of_module(path, module, source, base, initial, refusals))
    ]
    steps += [
        s
        for name, t in source.saved.items()
        if (s := _of_saved(name, _without_padding(name, t, source, base), base, refusals))
    ]
    steps += [
        s for path, (rows, t) in source.tokens.items() if (s := _of_tokens(path, rows, t, base, refusals))
    ]
    paths = [step.path for step in steps]
    for path in sorted({path for path in paths if paths.count(path) > 1}):
        refusals.add(
            "module_twice",
            f"The adapter changes module {shown(path)} in two ways.",
            found=shown(path),
            expected="LoRA, a whole module or trained tokens, one of them",
            remedy="Train it in one way.",
        )
    return steps + [
        twin
        for step in steps
        if base.embeds(step.path) and base.tied and "lm_head" not in paths
        if (twin := _twin(step, source))
    ]


def _check_initial(source: SourceAdapter, initial: SourceAdapter | None, refusals: Refusals) -> None:
    init = source.config.get("init_lora_weights", True)
    if initial is None:
        if isinstance(init, str) and init.lower() not in PLAIN_INITS:
            refusals.add(
                "initial_missing",
                "The adapter's initialization changed the base model's weights.",
                found=f"init_lora_weights = {shown(init)}",
                expected="the adapter as it was before training",
                remedy="Give the directory of the adapter saved before the first step with --initial.",
            )
        return
    for path, module in source.modules.items():
        before = initial.modules.get(path)
        if before is None or (before.a.shape, before.b.shape) != (module.a.shape, module.b.shape):
            refusals.add(
                "initial_differs",
                f"The initial adapter does not fit module {shown(path)}.",
                found="no such module" if before is None else f"lora_A {list(before.a.shape)}",
                expected=f"lora_A {list(module.a.shape)}",
                remedy="Give the adapter that this training started from with --initial.",
            )


def _of_module(
    path: str,
    module: Module,
    source: SourceAdapter,
    base: BaseWeights,
    initial: SourceAdapter | None,
    refusals: Refusals,
) -> Step | None:
    transposed = module.embedding or source.transposed
    shape = (module.b.shape[0], module.a.shape[1])
    weight = _base_weight(f"{path}.weight", shape[::-1] if transposed else shape, base, refusals)
    if weight is None:
        return None
    if module.magnitude is not None and module.magnitude.elements != shape[0]:
        refusals.add(
            "shape_mismatch",
            f"The magnitudes of {shown(path)} do not fit it.",
            found=str(list(module.magnitude.shape)),
            expected=str([shape[0]]),
            remedy="Save the adapter again.",
        )
        return None
    before = initial.modules.get(path) if initial else None
    return Step(
        path,
        weight,
        module.embedding,
        transposed,
        partial(_change, module, before, weight, transposed=transposed),
    )


def _change(
    module: Module, before: Module | None, weight: StoredTensor, *, transposed: bool
) -> Factors | Change:  # for partial
    factors = module.factors()
    if before is not None:
        # The base that was trained is W - s·B₀A₀, so W changes by s·(BA - B₀A₀).
        initial = Factors(before.a.all(), before.b.all(), module.scaling)
        factors = joined([(factors, 1.0), (initial, -1.0)])
    if module.magnitude is None:
        return factors
    return dora(weight, factors, module.magnitudes(), transposed=transposed)


def _without_padding(
    name: str, saved: StoredTensor, source: SourceAdapter, base: BaseWeights
) -> StoredTensor:
    """Without the rows after the base model's, if the tokenizer beside the adapter has no token for them but
    one for padding: engines have the base model's tokenizer, so no text ever holds it."""
    weight = base.find(name)
    rows = weight.shape[0] if weight is not None and weight.shape[1:] == saved.shape[1:] else 0
    if not 0 < rows < saved.shape[0] or len(saved.shape) != 2:
        return saved
    try:
        only_padding = tokens_beyond(source.directory, rows) == {}
    except FileInvalidError:
        only_padding = False
    return replace(saved, shape=(rows, saved.shape[1])) if only_padding else saved


def _of_saved(name: str, saved: StoredTensor, base: BaseWeights, refusals: Refusals) -> Step | None:
    weight = _base_weight(name, saved.shape, base, refusals)
    if weight is None:
        return None
    path, _, parameter = name.rpartition(".")
    embedding = base.embeds(path)
    return Step(
        path if parameter == "weight" else name, weight, embedding, embedding, partial(Saved, weight, saved)
    )


def _of_tokens(
    path: str, rows: tuple[int, ...], values: StoredTensor, base: BaseWeights, refusals: Refusals
) -> Step | None:
    weight = base.find(f"{path}.weight")
    shape = weight.shape if weight is not None else ()
    if weight is not None and rows and (max(rows) >= shape[0] or values.shape[1:] != shape[1:]):
        refusals.add(
            "new_tokens",
            f"The adapter trains tokens that {shown(path)} of the base model does not have.",
            found=f"token {max(rows)}, rows {list(values.shape)}",
            expected=f"tokens below {shape[0]}",
            remedy="Serve a base model whose embeddings were resized, and convert against that.",
        )
        return None
    weight = _base_weight(f"{path}.weight", shape, base, refusals)
    if weight is None:
        return None
    embedding = base.embeds(path)
    return Step(
        path, weight, embedding, embedding, partial(_token_factors, rows, values, weight, embedding=embedding)
    )


def _token_factors(
    rows: tuple[int, ...], values: StoredTensor, weight: StoredTensor, *, embedding: bool
) -> Factors:  # for partial
    """One row of lora_A for each token (columns of lora_B for lm_head): exact, at the number of tokens."""
    old = np.concatenate([weight.rows(row, row + 1) for row in rows])
    chosen = np.zeros((len(rows), weight.shape[0]), np.float32)
    chosen[np.arange(len(rows)), rows] = 1
    delta = values.all() - old
    return Factors(chosen, delta.T) if embedding else Factors(delta, chosen.T)


def _twin(step: Step, source: SourceAdapter) -> Step | None:
    """PEFT ties trained tokens to lm_head by itself, all else with `ensure_weight_tying`."""
    if step.path not in source.tokens and source.config.get("ensure_weight_tying") is not True:
        return None

    def make() -> Factors | Change:
        update = step.make()
        if not isinstance(update, Factors):
            return update
        return Factors(update.b.T, update.a.T, update.scaling)

    return Step("lm_head", step.base, embedding=False, transposed=False, make=make, tied=True)


def _base_weight(
    name: str, shape: tuple[int, ...], base: BaseWeights, refusals: Refusals
) -> StoredTensor | None:
    weight = base.find(name)
    if weight is None:
        refusals.add(
            "module_not_in_base",
            f"The base model has no parameter {shown(name)}.",
            found=shown(str(base.directory)),
            expected=shown(name),
            remedy="Name the base model that the adapter was trained on with --base.",
        )
    elif not weight.readable:
        refusals.add(
            "base_quantized",
            f"{shown(name)} of the base model is quantized.",
            found=weight.dtype,
            expected="BF16, F16 or F32",
            remedy="Give the full-precision model as --base.",
        )
    elif weight.shape != shape:
        vocabulary = len(shape) == 2 and shape[1:] == weight.shape[1:]
        refusals.add(
            "shape_mismatch",
            f"{shown(name)} has another shape than in the base model.",
            found=str(list(shape)),
            expected=str(list(weight.shape)),
            remedy="Serve a base model with the resized vocabulary, and convert against that. If the rows "
            "are padding, they are dropped if the tokenizer's files lie beside the adapter and say so."
            if vocabulary
            else "Name the base model that the adapter was trained on with --base.",
        )
    else:
        return weight
    return None
