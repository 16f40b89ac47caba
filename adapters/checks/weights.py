"""Looks at the weights themselves: NaN, infinities, overflow, and adapters that change nothing.

The file is read once, in chunks, into one buffer: memory stays bounded whatever its size, and a file that
is cut short meanwhile is an error, not a crash. No weight is converted: the bits of a float without its
sign, read as an integer, are in the order of the floats, with the infinities and NaN above all others. So
one integer maximum per tensor says all that is needed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.checks.findings import Findings, shown
from adapters.checks.lora_config import LoraConfig
from adapters.checks.safetensors_header import DTYPE_BYTES, Tensor
from adapters.checks.tensors import module_of
from adapters.progress import Progress, ProgressMeter, silent

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK_BYTES = 8 * 1024 * 1024
CHECKING = "check"
_BITS: dict[str, tuple[str, int]] = {
    "F16": ("<u2", 0x7FFF),
    "BF16": ("<u2", 0x7FFF),
    "F32": ("<u4", 0x7FFF_FFFF),
}
"""How numpy reads a type's bits, and the mask that takes the sign away."""

_LARGEST_F16 = 65504.0
_LARGEST_BF16 = 3.3895e38

_SCALINGS = (1e-3, 100.0)
"""alpha / rank in training is about 0.1 to 8; beyond these bounds it is a slip."""


def magnitudes(path: Path, tensors: Mapping[str, Tensor], progress: Progress = silent) -> dict[str, float]:
    """Name → the largest absolute value in it; inf or nan when it holds one. Tensors of other types than
    float16, bfloat16 and float32 are left out. Raises OSError. Blocking."""
    known = sorted(
        ((name, t) for name, t in tensors.items() if t.dtype in _BITS), key=lambda item: item[1].offset
    )
    total = sum(_size(tensor) for _, tensor in known)
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, max((_size(t) for _, t in known), default=0))))
    meter = ProgressMeter(CHECKING, progress, total)
    result: dict[str, float] = {}
    with path.open("rb") as file:
        for name, tensor in known:
            file.seek(tensor.offset)
            left, top = _size(tensor), 0
            while left:
                chunk = buffer[: min(left, len(buffer))]
                if file.readinto(chunk) != len(chunk):
                    raise OSError(f"{path} ends before tensor {name[:80]!r} does")
                top = max(top, _top_bits(chunk, tensor.dtype))
                left -= len(chunk)
                meter.add(len(chunk))
            result[name] = _decode(top, tensor.dtype)
    meter.tell()
    return result


def check_weights(
    weights: Mapping[str, float],
    *,
    lora: LoraConfig | None,
    base_config: Mapping[str, Any] | None,
    findings: Findings,
) -> None:
    """`weights`: what `magnitudes` gave. Without `lora` only that they are finite."""
    for name, largest in weights.items():
        if not math.isfinite(largest):
            findings.add(
                "weights_not_finite",
                f"{shown(name)} holds weights that are no numbers.",
                found="NaN" if math.isnan(largest) else "an infinity",
                expected="finite weights",
            )
    if lora is None or lora.alpha is None:
        return
    modules: dict[str, dict[str, float]] = {}
    for name, largest in weights.items():
        if (located := module_of(name)) is not None:
            modules.setdefault(located[0], {})[located[1]] = largest
    _check_scalings({lora.scaling_of(path) for path in modules}, findings)
    _check_range(modules, lora, _largest(base_config), findings)
    _check_effect(modules, findings)


def _check_scalings(scalings: set[float], findings: Findings) -> None:
    least, most = _SCALINGS
    for scaling in sorted(scalings):
        if not least <= scaling <= most:
            findings.add(
                "scaling_extreme",
                "The adapter's weights are multiplied by an unusual factor.",
                found=f"alpha / rank = {scaling:.6g}",
                expected=f"{least:g} to {most:g}",
            )


def _check_range(
    modules: Mapping[str, Mapping[str, float]], lora: LoraConfig, largest: float, findings: Findings
) -> None:
    """Engines cast both matrices to the base model's type and multiplies lora_B by the scaling in it."""
    for path, halves in modules.items():
        scaling = lora.scaling_of(path)
        for half, value in halves.items():
            scaled = value * max(scaling, 1.0) if half == "B" else value
            if math.isfinite(value) and scaled > largest:
                findings.add(
                    "weights_overflow",
                    f"Weights of {shown(path)} become infinite when engines load them.",
                    found=f"lora_{half} up to {value:.6g}, alpha / rank {scaling:.6g}",
                    expected=f"at most {largest:.6g} after scaling",
                )


def _check_effect(modules: Mapping[str, Mapping[str, float]], findings: Findings) -> None:
    idle = [path for path, halves in modules.items() if not all(halves.values())]
    if not idle:
        return
    if len(idle) == len(modules):
        findings.add(
            "no_effect",
            "The adapter changes nothing: engines would answer as the base model.",
            found=f"all zero: one matrix or both of each of {len(idle)} modules",
            expected="weights other than zero in lora_A and lora_B",
        )
        return
    for path in idle:
        findings.add(
            "module_without_effect",
            f"In module {shown(path)} the adapter changes nothing.",
            found="a matrix that is all zero",
            expected="weights other than zero in lora_A and lora_B",
        )


def _largest(base_config: Mapping[str, Any] | None) -> float:
    """The largest number of the type that engines serve the base in. float32 counts as float16, which an
    engine may well make of it."""
    text = (base_config or {}).get("text_config")
    for config in (base_config or {}, text if isinstance(text, dict) else {}):
        dtype = config.get("dtype") or config.get("torch_dtype")
        if dtype == "bfloat16":
            return _LARGEST_BF16
    return _LARGEST_F16


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]


def _top_bits(chunk: memoryview, dtype: str) -> int:
    import numpy as np  # noqa: PLC0415  # loads slowly, and few processes ever check weights

    kind, mask = _BITS[dtype]
    bits: NDArray[Any] = np.frombuffer(chunk, kind)
    bits &= bits.dtype.type(mask)  # in place: the buffer is ours, and is filled anew next time
    return int(bits.max())


def _decode(bits: int, dtype: str) -> float:
    """The float with these bits. A NaN decides over infinities, which are below it."""
    import numpy as np  # noqa: PLC0415  # as above

    if dtype == "F16":
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(bits << 16 if dtype == "BF16" else bits).view(np.float32))
