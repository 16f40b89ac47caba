"""What vLLM can adapt: its own model is built on the meta device, and LoRA's rules are applied to its layers.

Runs in the engines' environment. vLLM's `LoRAModelManager` allocates the matrices of every slot, which needs
kernels for the device; here only its decisions are made, with its own functions.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

_OPTIONAL = ("torchvision", "torchaudio", "librosa", "soundfile", "av", "timm", "open_clip")
"""Packages that multimodal models import for pictures and sound, and that layers do not need."""
_TABLES = {
    "_TEXT_GENERATION_MODELS": "text",
    "_EMBEDDING_MODELS": "pooling",
    "_LATE_INTERACTION_MODELS": "pooling",
    "_REWARD_MODELS": "pooling",
    "_SEQUENCE_CLASSIFICATION_MODELS": "pooling",
    "_TOKEN_CLASSIFICATION_MODELS": "pooling",
    "_MULTIMODAL_MODELS": "multimodal",
    "_TRANSFORMERS_SUPPORTED_MODELS": "text",
}
"""The registry's tables. Not those of draft models, which are no base, nor those of the generic backend."""


class _Nothing(type):
    """A class of a package that is not installed; so is whatever is looked up in it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {"__iter__": lambda _self: iter(())})


class _Absent(ModuleType):
    """A package that is not installed: any name of it is an empty class."""

    __path__: list[str] = []  # noqa: RUF012  # a package, as far as the import system asks

    def __getattr__(self, name: str) -> Any:
        return getattr(_Nothing(self.__name__, (), {}), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> Any:
        if fullname.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def prepare() -> None:
    """Before the first import of vLLM."""
    import sys

    os.environ.update(VLLM_TARGET_DEVICE="cpu", VLLM_LOGGING_LEVEL="CRITICAL", HF_HUB_OFFLINE="1")
    import transformers  # noqa: F401  # it must find torchvision absent, before `_Finder` puts a stand-in

    absent = frozenset(name for name in _OPTIONAL if importlib.util.find_spec(name) is None)
    sys.meta_path.append(_Finder(absent))

    # Unless the user's cache has the result, vLLM inspects each class in a process of its own: that takes ten
    # seconds, and lacks `_Absent`.
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._LazyRegisteredModel.inspect_model_cls = lambda model: registry._ModelInfo.from_model_cls(
        model.load_model_cls()
    )


@dataclass(frozen=True)
class Capable:
    """A name of vLLM's registry whose class supports LoRA."""

    kind: str
    """text, multimodal or pooling."""


def capable(only: Collection[str] = ()) -> tuple[dict[str, Capable], dict[str, str]]:
    """Every name whose class supports LoRA, and those that could not be imported with the reason. `only`: of
    these names."""
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    interfaces = importlib.import_module("vllm.model_executor.models.interfaces")
    names: dict[str, Capable] = {}
    broken: dict[str, str] = {}
    for table, kind in _TABLES.items():
        for name, (file, cls) in sorted(getattr(registry, table).items()):
            if only and name not in only:
                continue
            path = file if "." in file else f"vllm.model_executor.models.{file}"
            try:
                model = getattr(importlib.import_module(path), cls)
            except Exception as error:  # noqa: BLE001  # whatever a model's module does at import
                broken[name] = in_short(error)
                continue
            if interfaces.supports_lora(model):
                names.setdefault(name, Capable(kind))
    return names, broken


def in_short(error: BaseException) -> str:
    """One line. Messages that name a path differ from machine to machine, so only their kind is told."""
    text = str(error).strip().partition("\n")[0][:150]
    kind = type(error).__name__
    return kind if not text or "/" in text else f"{kind}: {text}"


@dataclass
class Adaptable:
    """The names under which an adapter's weights reach a layer of vLLM's model."""

    linear: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """Name → (in, out); out is None where several outputs share a layer and their split is not told."""
    experts: dict[str, Experts] = field(default_factory=dict)
    embeddings: dict[str, tuple[int, int]] = field(default_factory=dict)
    mapper: Any = None
    skipped: tuple[str, ...] = ()
    pooling: bool = False
    language: str = ""
    """Where the language model of a multimodal model is: `language_model`."""


@dataclass(frozen=True)
class Experts:
    number: int
    hidden: int
    inner: int
    fused: bool
    """One pair of matrices for all experts, as PEFT's target_parameters makes it."""
    names: tuple[str, ...]
    """Else the names of one expert's projections: gate_proj, down_proj, up_proj. Of two: not gated."""


_world = False


class _Gpu:
    """The platform as mixtures of experts see it: some are refused on the CPU, by name."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def is_xpu(self) -> bool:
        return True


def build(config: Any) -> Any:
    """VLLM's model of a transformers config, on the meta device, and its engine's config."""
    global _world  # noqa: PLW0603  # torch's process group is one a process
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import (
        init_distributed_environment,
        initialize_model_parallel,
        parallel_state,
    )
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        arguments = EngineArgs(
            model=directory,
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_lora=True,
            max_lora_rank=8,
            max_model_len=64,
            dtype="bfloat16",
            load_format="dummy",
        )
        engine = arguments.create_engine_config()
        with set_current_vllm_config(engine):
            if not _world:
                init_distributed_environment(1, 0, f"file://{directory}/world", 0, "gloo")
                initialize_model_parallel(1, 1)
                parallel_state._EP = parallel_state._TP  # only made for mixtures of experts
                moe: Any = importlib.import_module("vllm.model_executor.layers.fused_moe.config")
                moe.current_platform = _Gpu(moe.current_platform)
                _world = True
            with torch.device("meta"):
                return initialize_model(engine), engine


def adaptable(model: Any) -> Adaptable:
    """Decide as `LoRAModelManager._create_lora_modules` does."""
    from vllm.config.lora import LoRAConfig
    from vllm.lora import utils
    from vllm.model_executor.layers.fused_moe import MoERunner
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.models import is_pooling_model, supports_multimodal

    mapper = getattr(model, "hf_to_vllm_mapper", None)
    result = Adaptable(
        mapper=mapper.get_rename_mapper() if mapper is not None else None,
        skipped=tuple(getattr(model, "lora_skip_prefixes", None) or ()),
        pooling=bool(is_pooling_model(model)),
    )
    if supports_multimodal(model) and hasattr(model, "get_mm_mapping"):
        (result.language,) = model.get_mm_mapping().language_model
    lora = LoRAConfig(max_lora_rank=8)
    supported = utils.get_supported_lora_modules(model)
    packed = utils.process_packed_modules_mapping(model)
    moe = utils.is_moe_model(model)
    fused, gated = moe and model.is_3d_moe_weight, not (moe and model.is_non_gated_moe)
    seen: set[int] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        if not utils.is_supported_lora_module(name, module, supported) or not name.startswith(
            result.language
        ):
            continue
        if not gated and name.endswith("mixer.gate"):
            continue
        if id(module) in seen and "lm_head" not in name:
            continue
        parent, _, leaf = name.rpartition(".")
        children = packed.get(leaf, [])
        if isinstance(module, MoERunner):
            seen.add(id(module))
            size = module.moe_config
            result.experts[name] = Experts(
                size.num_experts,
                size.hidden_dim,
                size.intermediate_size_per_partition,
                bool(fused),
                ()
                if fused
                else tuple(dict.fromkeys(child.rpartition(".")[2] for child in packed.get("experts", []))),
            )
            continue
        if "lm_head" in name:
            result.embeddings[name] = (module.embedding_dim, module.org_vocab_size)
            continue
        wrapper = next(
            (
                cls
                for cls in utils._all_lora_classes
                if cls.can_replace_layer(
                    source_layer=module,
                    lora_config=lora,
                    packed_modules_list=children,
                    model_config=model.config,
                )
            ),
            None,
        )
        if wrapper is None:
            continue
        seen.add(id(module))
        if isinstance(module, VocabParallelEmbedding):
            result.embeddings[name] = (module.org_vocab_size, module.embedding_dim)
        elif len(children) > 1:
            sizes = list(module.output_sizes)
            for number, child in enumerate(children):
                path = f"{parent}.{child}" if parent else child
                out = sizes[number] if len(sizes) == len(children) else None
                result.linear[path] = (module.input_size, out)
        else:
            result.linear[name] = (module.input_size, module.output_size)
    return result
