"""Determines GPU type and count with NVML, using the price book's names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pynvml

_WORDS = re.compile(r"[ _-]+")
_DROPPED = re.compile(
    r"nvidia|tesla|geforce|generation|edition|server|workstation|sxm\d*|hbm\d*e?", re.IGNORECASE
)
_MEMORY = re.compile(r"\d+GB", re.IGNORECASE)
_SOLD_BY_MEMORY = {"A100", "A800", "V100", "P100"}
"""Types whose price depends on their memory; others omit it: `H100`, not `H100-80GB`."""


class GpuError(Exception):
    """The type or count cannot be determined; the message says which flag to give."""


@dataclass(frozen=True, slots=True)
class Gpus:
    type: str
    count: int
    note: str = ""
    """A note for the operator."""


def type_of(product: str) -> str:
    """`NVIDIA H100 80GB HBM3` → `H100`, `NVIDIA A100-SXM4-80GB` → `A100-80GB`, `NVIDIA H100 PCIe` →
    `H100-PCIe`, `NVIDIA H100 80GB HBM3 MIG 1g.10gb` → `H100-MIG-1g.10gb`. Parts that affect the price (PCIe,
    NVL, a MIG slice) are kept; vendor, brand and socket are dropped."""
    words = [w for w in _WORDS.split(product.strip()) if w and not _DROPPED.fullmatch(w)]
    if not words:
        return product.strip()
    by_memory = words[0] in _SOLD_BY_MEMORY
    memory = [w.upper() for w in words if _MEMORY.fullmatch(w)]
    rest = [w for w in words if not _MEMORY.fullmatch(w)]
    return "-".join([rest[0], *rest[1:], *(memory[:1] if by_memory else ())]) if rest else words[0]


def read_products() -> dict[str, str]:
    """Index and UUID of each GPU and MIG slice → its product name; empty without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        products: dict[str, str] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            products[str(index)] = products[_text(pynvml.nvmlDeviceGetUUID(handle))] = _text(
                pynvml.nvmlDeviceGetName(handle)
            )
            products |= _slices(handle)
    except pynvml.NVMLError as error:
        raise GpuError(f"NVML cannot read the GPUs ({error}): give --gpu-type and --gpu-count.") from error
    finally:
        pynvml.nvmlShutdown()
    return products


def find(
    products: Mapping[str, str],
    visible: str | None,
    *,
    engine: int,
    gpu_type: str | None = None,
    gpu_count: int | None = None,
) -> Gpus:
    """Determine type and count. Pure. `products`: see `read_products`. `visible`: CUDA_VISIBLE_DEVICES.
    `engine`: number of GPUs that the engine's flags use. Given values win, with a note if they do not match.
    Raises GpuError."""
    if not products:
        if not gpu_type:
            raise GpuError("NVML finds no NVIDIA GPU on this machine: give --gpu-type.")
        return Gpus(gpu_type, gpu_count or engine)
    seen = _visible(products, visible)
    if gpu_count is None and len(seen) < engine:
        raise GpuError(
            f"The engine's flags use {engine} GPUs, but {len(seen)} are visible: correct "
            "CUDA_VISIBLE_DEVICES or the parallel sizes, or give --gpu-count."
        )
    types = sorted({type_of(product) for product in seen}) or ["none"]
    if gpu_type is None:
        if len(types) > 1:
            raise GpuError(f"The GPUs have different types ({', '.join(types)}): give --gpu-type.")
        return Gpus(types[0], gpu_count or engine)
    model = types[0].partition("-")[0]
    fits = len(types) == 1 and _plain(model) in _plain(gpu_type)
    note = (
        ""
        if fits
        else f"--gpu-type is {gpu_type}, but NVML reports {', '.join(types)}: costs use --gpu-type."
    )
    return Gpus(gpu_type, gpu_count or engine, note)


def _visible(products: Mapping[str, str], visible: str | None) -> Sequence[str]:
    """The visible GPUs as CUDA determines them: in order, up to the first unknown one."""
    if visible is None:
        return [product for index, product in products.items() if index.isdigit()]
    seen: list[str] = []
    for word in (w.strip() for w in visible.split(",")):
        matches = [
            p for key, p in products.items() if key == word or (len(word) > 3 and key.startswith(word))
        ]
        if not matches:
            break
        seen.append(matches[0])
    return seen


def _slices(handle: object) -> dict[str, str]:
    """MIG slices by UUID, as CUDA_VISIBLE_DEVICES names them."""
    slices: dict[str, str] = {}
    try:
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:
        return slices
    for index in range(count):
        try:
            piece = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError:
            continue
        slices[_text(pynvml.nvmlDeviceGetUUID(piece))] = _text(pynvml.nvmlDeviceGetName(piece))
    return slices


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
