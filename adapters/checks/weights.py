"""Checks the weights themselves for NaN, infinities, overflow, and adapters without effect.

The file is read once, in chunks, into one buffer, so memory use is bounded and a file truncated meanwhile is
an error instead of a crash. No weight is converted: in IEEE 754, the bits of a float without its sign, read
as an integer, sort like the floats, with infinity and NaN above all others. One integer maximum per tensor is
therefore enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
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
"""The numpy type for a type's bits, and the mask that clears the sign."""

_LARGEST_F16 = 65504.0
_LARGEST_BF16 = 3.3895e38

_SCALINGS = (1e-3, 100.0)
"""alpha / rank is about 0.1 to 8 in training; a value beyond these bounds is a mistake."""


def magnitudes(path: Path, tensors: Mapping[str, Tensor], progress: Progress = silent) -> dict[str, float]:
    """Name → the tensor's largest absolute value, inf or nan. Skips types other than float16, bfloat16 and
    float32. Raises OSError. Blocking."""
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
                    raise OSError(f"{path} ends within tensor {name[:80]!r}")
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
    paths: Collection[str],
    base_config: Mapping[str, Any] | None,
    findings: Findings,
) -> None:
    """Check the result of `magnitudes`. Without `lora`, check only that the weights are finite. `paths`: the
    modules that the base model has."""
    for name, largest in weights.items():
        if not math.isfinite(largest):
            findings.add(
                "weights_not_finite",
                f"{shown(name)} contains weights that are not finite.",
                found="NaN" if math.isnan(largest) else "an infinity",
                expected="finite weights",
            )
    if lora is None or lora.alpha is None:
        return
    modules: dict[str, dict[str, float]] = {}
    for name, largest in weights.items():
        if (located := module_of(name)) is not None:
            modules.setdefault(located[0], {})[located[1]] = largest
    existing = {path: modules[path] for path in paths if path in modules}
    _check_scalings({lora.scaling_of(path) for path in existing}, findings)
    _check_range(existing, lora, _largest(base_config), findings)
    _check_effect(modules, findings)


def _check_scalings(scalings: set[float], findings: Findings) -> None:
    least, most = _SCALINGS
    for scaling in sorted(scalings):
        if not least <= scaling <= most:
            findings.add(
                "scaling_extreme",
                "The adapter's scaling factor is unusual.",
                found=f"alpha / rank = {scaling:.6g}",
                expected=f"{least:g} to {most:g}",
            )


def _check_range(
    modules: Mapping[str, Mapping[str, float]], lora: LoraConfig, largest: float, findings: Findings
) -> None:
    """Engines cast both matrices to the base model's type and multiply lora_B by the scaling in that type."""
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
            "The adapter has no effect; engines would answer like the base model.",
            found=f"an all-zero matrix in each of {len(idle)} modules",
            expected="weights other than zero in lora_A and lora_B",
        )
        return
    for path in idle:
        findings.add(
            "module_without_effect",
            f"The adapter has no effect on module {shown(path)}.",
            found="an all-zero matrix",
            expected="weights other than zero in lora_A and lora_B",
        )


def _largest(base_config: Mapping[str, Any] | None) -> float:
    """The largest number of the type in which engines serve the base model. float32 counts as float16,
    because an engine may convert to it."""
    text = (base_config or {}).get("text_config")
    for config in (base_config or {}, text if isinstance(text, dict) else {}):
        dtype = config.get("dtype") or config.get("torch_dtype")
        if dtype == "bfloat16":
            return _LARGEST_BF16
    return _LARGEST_F16


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]


def _top_bits(chunk: memoryview, dtype: str) -> int:
    import numpy as np  # noqa: PLC0415  # slow to import, and few processes check weights

    kind, mask = _BITS[dtype]
    bits: NDArray[Any] = np.frombuffer(chunk, kind)
    bits &= bits.dtype.type(mask)  # in place: the buffer is ours and refilled next time
    return int(bits.max())


def _decode(bits: int, dtype: str) -> float:
    """The float with these bits. NaN sorts above infinity and so takes precedence."""
    import numpy as np  # noqa: PLC0415  # as above

    if dtype == "F16":
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(bits << 16 if dtype == "BF16" else bits).view(np.float32))
