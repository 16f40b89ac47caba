"""What of an agent's environment its engine is given. Pure.

vLLM runs the model's code, and code that a checkpoint brings along. What it can read, an attacker may read;
so it is given the variables that it and its libraries know, and no others. What else an engine needs is
named with `--pass-env`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

ALLOWED = (
    # the system's own
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TMP",
    "TEMP", "PWD", "HOSTNAME", "XDG_*", "LD_*", "DYLD_*", "LIBRARY_PATH", "CPATH", "CC", "CXX", "CFLAGS",
    "CXXFLAGS", "LDFLAGS", "MALLOC_*", "TCMALLOC_*", "JEMALLOC_*",
    # Python
    "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV",
    # the way out: model files may be fetched
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy",
    "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    # vLLM, and what computes for it
    "VLLM_*", "SPT_*", "CUDA*", "NVIDIA_*", "CUDNN_*", "CUBLAS_*", "NCCL_*", "UCX_*", "GLOO_*", "TORCH*",
    "PYTORCH_*", "TRITON_*", "FLASHINFER_*", "FLASH_ATTENTION_*", "XFORMERS_*", "INDUCTOR_*", "OMP_*",
    "KMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*", "NUMBA_*", "GOMP_*", "ONEDNN_*", "DNNL_*", "RAYON_*",
    "TOKENIZERS_*", "SAFETENSORS_*", "ROCM_*", "ROCR_*", "HIP_*", "HSA_*", "MIOPEN_*", "PYTORCH_ROCM_*",
    "ZE_*", "SYCL_*", "ONEAPI_*", "NEURON_*", "HABANA_*", "TPU_*", "XLA_*", "IB_*", "FI_*",
    "GPU_DEVICE_ORDINAL",
    # where the base model comes from; HF_TOKEN among them, which gated models need
    "HF_*", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_*", "TRANSFORMERS_*", "MODELSCOPE_*",
)  # fmt: skip
"""Names, or beginnings of names with `*`."""

NEVER = ("FLORIN_*",)
"""What no `--pass-env` lets through: Florin's own keys and settings."""


def split(environ: Mapping[str, str], passed: Iterable[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the engine is given, and the names of what is withheld. `passed`: more names, or beginnings with
    `*`."""
    allowed = (*ALLOWED, *passed)
    given = {n: v for n, v in environ.items() if _matches(n, allowed) and not _matches(n, NEVER)}
    return given, tuple(sorted(environ.keys() - given.keys()))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
