"""Checks the names, types and shapes of an adapter's tensors against its config and its base model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Sized

from adapters.checks.finding_codes import CONVERT, GATHER
from adapters.checks.findings import Findings, shown
from adapters.checks.lora_config import LoraConfig
from adapters.checks.safetensors_header import Tensor
from adapters.checks.shapes import TEXT_NAMES_SINCE, BaseShapes, Module, Place
from adapters.checks.trainer_output import tensor_remedy

DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}

_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<path>[A-Za-z0-9_.]+)\."
    r"(?:lora_(?P<linear>[AB])\.weight|lora_embedding_(?P<embedding>[AB]))",
    re.ASCII,
)
"""Some trainers leave out the prefix, and vLLM does without it."""
_WRAPPED = re.compile(r"base_model|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|^module\.")
"""In a path: what training wraps around modules, and a second prefix. vLLM removes every prefix from a name,
PEFT only the first."""
_EMBEDDINGS = re.compile(
    r"(?:[A-Za-z0-9_]+\.)*(?:embed_tokens|lm_head)\.(?:[A-Za-z0-9_]+\.){0,2}weight",
    re.ASCII,
)
"""Full embeddings, which PEFT saves for `modules_to_save` or a resized vocabulary."""
_SAVED_BASE = re.compile(r"base_model\.model\.(?P<path>model\.embed_tokens|lm_head)\.base_layer\.weight")
"""PEFT saves the base model's embeddings beside an adapter that changes them; vLLM ignores them."""


def module_of(name: str) -> tuple[str, str] | None:
    """`base_model.model.lm_head.lora_A.weight` → `lm_head` and `A`; None if it is not a LoRA weight."""
    match = _NAME.fullmatch(name)
    if match is None or _WRAPPED.search(match["path"]):
        return None
    return match["path"], match["linear"] or match["embedding"]


def add_half(
    pairs: dict[str, dict[str, Tensor]], module: tuple[str, str], tensor: Tensor, findings: Findings
) -> None:
    """Add the tensor to the matrices of its module, as `module_of` gives it."""
    path, half = module
    halves = pairs.setdefault(path, {})
    if half in halves:
        findings.add(
            "tensor_name_invalid",
            f"Module {shown(path)} has its lora_{half} twice; in engines, one would overwrite the other.",
            found="a name with `base_model.model.` in front, and one without",
            expected="each matrix once",
        )
    halves[half] = tensor


def check_dtypes(tensors: Mapping[str, Tensor], findings: Findings) -> None:
    """Check the types of the LoRA weights; base weights saved along with them do not matter."""
    kinds: dict[str, str] = {}
    for name, tensor in tensors.items():
        if module_of(name) is None:
            continue
        kinds.setdefault(tensor.dtype, name)
        if tensor.dtype not in DTYPES:
            findings.add(
                "dtype_unsupported",
                f"{shown(name)} has a type that LoRA weights cannot have.",
                found=tensor.dtype,
                expected=", ".join(DTYPES),
            )
    if len(kinds) > 1 and kinds.keys() <= DTYPES.keys():
        findings.add(
            "mixed_dtypes",
            "The weights have several types.",
            found=", ".join(f"{dtype} ({shown(name)})" for dtype, name in sorted(kinds.items())),
            expected="a single type",
        )


def refuse_no_tensors(pairs: Sized, tensors: Sized, findings: Findings) -> None:
    if not pairs and not findings:
        findings.add(
            "no_tensors",
            "The file contains no LoRA weights, so engines would answer like the base model.",
            found=f"{len(tensors)} tensors, none of them lora_A or lora_B",
            expected="a lora_A and a lora_B for every module that the adapter changes",
            remedy="" if tensors else GATHER,
        )


def check_tensors(
    tensors: Mapping[str, Tensor],
    *,
    lora: LoraConfig,
    shapes: BaseShapes,
    text_rank: int | None = None,
    findings: Findings,
) -> tuple[str, ...]:
    """Check the tensors, and return the paths of the base model's modules that the adapter changes.
    `text_rank`: see `validate`."""
    pairs = _pairs(tensors, shapes, findings)
    refuse_no_tensors(pairs, tensors, findings)
    places = {path: shapes.locate(path) for path in pairs}
    lacking: dict[str, set[int]] = {}
    existing = tuple(
        path
        for path, halves in pairs.items()
        if _check_module(path, halves, places[path], lora, shapes, lacking=lacking, findings=findings)
    )
    _refuse_lacking(lacking, shapes, findings)
    roots = {place[0] for place in places.values() if place}
    if len(roots) > 1:
        findings.add(
            "tensor_name_invalid",
            "The adapter uses several prefixes for its layers; in engines, one would overwrite the other.",
            found=" and ".join(sorted(roots)),
            expected="a single prefix",
        )
    _check_experts(places, shapes, findings)
    _check_text_names(existing, lora, shapes, text_rank, findings)
    _check_targets(tuple(pairs), lora, shapes, findings)
    return existing


def _check_text_names(
    paths: Iterable[str], lora: LoraConfig, shapes: BaseShapes, text_rank: int | None, findings: Findings
) -> None:
    path = next(filter(shapes.of_language_model, paths), None)
    if path is None:
        return
    served = text_rank is None or lora.highest_rank <= text_rank
    engine = f"an engine of vLLM {TEXT_NAMES_SINCE} or later"
    if text_rank:
        engine += f" that takes rank {lora.highest_rank}"
    findings.add(
        "text_names" if served else "module_not_in_base",
        "The adapter was trained on the language model alone. Only vLLM "
        f"{TEXT_NAMES_SINCE} and later finds its modules in the multimodal model around it; older ones "
        "ignore them.",
        found=shown(path),
        expected=f"{shapes.around(path)}, which every vLLM finds; or {engine}",
        remedy="" if served else f"{CONVERT} It renames the modules. Or add such an engine to the fleet.",
    )


def _pairs(
    tensors: Mapping[str, Tensor], shapes: BaseShapes, findings: Findings
) -> dict[str, dict[str, Tensor]]:
    """Module path → its matrices `A` and `B`."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if _is_resized(name, tensor, shapes):
            findings.add(
                "vocabulary_changed",
                "The adapter contains embeddings for a different vocabulary than the base model's.",
                found=f"{shown(name)} with {tensor.shape[0]} rows",
                expected=f"{shapes.vocabulary} rows, the base model's vocab_size",
                remedy=f"{CONVERT} It drops rows of padding; for tokens that engines must know, serve a base "
                "model that has them.",
            )
            continue
        saved = _SAVED_BASE.fullmatch(name)
        if saved and shapes.engine_path(saved["path"]) in shapes.outside:
            _check_saved_base(name, tensor, shapes, saved["path"], findings)
            continue
        module = module_of(name)
        if module is None or _is_embedding(module[0]) != ("lora_embedding_" in name):
            findings.add(
                "tensor_name_invalid",
                "A tensor's name does not follow PEFT's naming of LoRA weights.",
                found=shown(name),
                expected="base_model.model.<module>.lora_A.weight or .lora_B.weight "
                "(.lora_embedding_A or _B for embed_tokens)",
                remedy=tensor_remedy(name),
            )
            continue
        add_half(pairs, module, tensor, findings)
    return pairs


def _is_resized(name: str, tensor: Tensor, shapes: BaseShapes) -> bool:
    is_embedding = _EMBEDDINGS.fullmatch(name) and not _NAME.fullmatch(name)
    return bool(is_embedding) and len(tensor.shape) == 2 and tensor.shape[0] != shapes.vocabulary


def _is_embedding(path: str) -> bool:
    return path.rpartition(".")[2] == "embed_tokens"


def _check_saved_base(name: str, tensor: Tensor, shapes: BaseShapes, path: str, findings: Findings) -> None:
    size_in, size_out = shapes.outside[shapes.engine_path(path)]
    vocabulary_first = (size_in, size_out) if _is_embedding(path) else (size_out, size_in)
    _expect_shape(name, tensor, [vocabulary_first], findings)


def _check_module(
    path: str,
    halves: Mapping[str, Tensor],
    located: Place | None,
    lora: LoraConfig,
    shapes: BaseShapes,
    *,
    lacking: dict[str, set[int]],
    findings: Findings,
) -> bool:
    """Whether the base model has the module. If a layer lacks it, adds the layer to `lacking`, by kind of
    module."""
    missing = {"A", "B"} - halves.keys()
    if missing:
        present, absent = halves.keys() - missing, missing
        findings.add(
            "tensor_unpaired",
            f"Module {shown(path)} has only one of its two matrices.",
            found=f"lora_{present.pop()} alone",
            expected=f"lora_{absent.pop()} too",
        )
    module = _module(path, located, shapes, findings)
    if module is None:
        return False
    sizes = module.sizes_in(located[1]) if located else module.sizes
    if not sizes:
        assert located
        lacking.setdefault(located[2], set()).add(located[1])
        return False
    if not lora.targets_module(path, located[1] if located else None):
        findings.add(
            "module_not_targeted",
            f"Module {shown(path)} has weights, but the config does not target it.",
            found=shown(path),
            expected="only modules selected by target_modules, exclude_modules and layers_to_transform",
        )
    rank = lora.rank_of(path) * module.copies
    if module.copies > 1 and {half: tensor.shape for half, tensor in halves.items()} in [
        {"A": (rank, size_out), "B": (size_in, rank)} for size_in, size_out in sizes if size_in != size_out
    ]:
        findings.add(
            "shape_mismatch",
            f"The matrices of {shown(path)} are transposed, as PEFT 0.18 wrote them for experts.",
            found=f"lora_A {list(halves['A'].shape)}, lora_B {list(halves['B'].shape)}",
            expected=f"lora_A {[rank, sizes[0][0]]}, lora_B {[sizes[0][1], rank]}",
            remedy="Train it with PEFT 0.19.1 or later, which writes them as engines read them.",
        )
        return True
    for half, tensor in halves.items():
        expected = [(rank, size_in) if half == "A" else (size_out, rank) for size_in, size_out in sizes]
        _expect_shape(f"{path}.lora_{half}", tensor, expected, findings)
    return True


def _module(path: str, located: Place | None, shapes: BaseShapes, findings: Findings) -> Module | None:
    engine_path = shapes.engine_path(path)
    if engine_path in shapes.outside:
        return Module((shapes.outside[engine_path],))
    if located is None:
        findings.add(
            "module_not_in_base",
            f"Engines cannot adapt module {shown(path)} of this base model.",
            found=shown(path),
            expected=f"one of {', '.join((*shapes.modules, *shapes.outside))}".replace("*", "<n>"),
        )
        return None
    if (allowed := shapes.beyond(path, located[2])) is not None:
        findings.add(
            "layer_out_of_range",
            f"The base model has no module {shown(path)}: a number in it is too high.",
            found=shown(path),
            expected=allowed,
        )
        return None
    return shapes.modules[located[2]]


def _refuse_lacking(lacking: Mapping[str, set[int]], shapes: BaseShapes, findings: Findings) -> None:
    """One finding for all kinds of modules that the same layers lack. `lacking`: kind → layers."""
    alike: dict[tuple[str, str], list[str]] = {}
    for kind, layers in lacking.items():
        key = spans(layers), spans(shapes.modules[kind].present())
        alike.setdefault(key, []).append(kind.replace("*", "<n>"))
    for (without, having), kinds in alike.items():
        findings.add(
            "module_not_in_base",
            f"The base model's {without} lack modules that the adapter changes, because its layers differ.",
            found=f"{', '.join(sorted(kinds))} in {without}",
            expected=f"these modules only in {having}",
            remedy="Register it for the base model that it was trained on. Or train it without these modules "
            "in those layers: as a regular expression, `target_modules` can name layers. Engines would "
            "silently ignore them.",
        )


def spans(layers: Iterable[int]) -> str:
    """`layers 0-2, 7`, `layer 5`"""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{'layer' if len(runs) == 1 and runs[0][0] == runs[0][1] else 'layers'} {text}"


def _expect_shape(name: str, tensor: Tensor, expected: Sequence[tuple[int, int]], findings: Findings) -> None:
    if tensor.shape not in expected:
        findings.add(
            "shape_mismatch",
            f"The shape of {shown(name)} does not match the base model and the rank.",
            found=str(list(tensor.shape)),
            expected=" or ".join(str(list(shape)) for shape in expected),
        )


def _check_experts(places: Mapping[str, Place | None], shapes: BaseShapes, findings: Findings) -> None:
    """The engine packs a layer's experts into one tensor and refuses an adapter that lacks one of them."""
    given: dict[tuple[str, str], int] = {}
    for path, located in places.items() if shapes.experts else ():
        for place, kinds in shapes.experts.items():
            if located and located[2] in kinds:
                engine_path = shapes.engine_path(path)
                layer = engine_path[: engine_path.index(".experts")]
                given[layer, place] = given.get((layer, place), 0) + 1
    for (layer, place), number in given.items():
        kinds = shapes.experts[place]
        each = max(math.prod(shapes.modules[kind].limits[1:]) for kind in kinds)
        if number != each * len(kinds):
            findings.add(
                "tensor_unpaired",
                f"The adapter changes some experts of {shown(layer)}; engines take all of a layer's or none.",
                found=f"{number} modules",
                expected=f"{each * len(kinds)}: every one of {', '.join(sorted(kinds))}".replace("*", "<n>"),
            )


def _check_targets(paths: tuple[str, ...], lora: LoraConfig, shapes: BaseShapes, findings: Findings) -> None:
    """A target that the base model lacks is harmless, because PEFT ignores it; a target without tensors means
    lost weights. A regular expression is not evaluated: an untrusted one may never finish, and engines look
    only at the tensors."""
    if lora.targets is None or not paths:
        return
    leaves = shapes.leaves()
    accounted = lora.excluded_targets().union(*(lora.targets.each(path) for path in paths))
    for target in lora.targets.values:
        if target.rpartition(".")[2] in leaves and target not in accounted:
            findings.add(
                "target_without_tensors",
                f"`target_modules` names {shown(target)}, but it has no weights.",
                found="no tensors for it",
                expected=f"lora_A and lora_B for modules named {shown(target)}",
            )
