"""Filters the environment that an agent passes to its engine. Pure.

vLLM runs the model's code, including code in the checkpoint, so anything it can read may leak. It gets only
the variables that vLLM and its libraries use. Name others with `--pass-env`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

ALLOWED = (
    # system
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TMP",
    "TEMP", "PWD", "HOSTNAME", "XDG_*", "LD_*", "DYLD_*", "LIBRARY_PATH", "CPATH", "CC", "CXX", "CFLAGS",
    "CXXFLAGS", "LDFLAGS", "MALLOC_*", "TCMALLOC_*", "JEMALLOC_*",
    # Python
    "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV",
    # network access, to download model files
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy",
    "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    # vLLM and its compute libraries
    "VLLM_*", "SPT_*", "CUDA*", "NVIDIA_*", "CUDNN_*", "CUBLAS_*", "NCCL_*", "UCX_*", "GLOO_*", "TORCH*",
    "PYTORCH_*", "TRITON_*", "FLASHINFER_*", "FLASH_ATTENTION_*", "XFORMERS_*", "INDUCTOR_*", "OMP_*",
    "KMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*", "NUMBA_*", "GOMP_*", "ONEDNN_*", "DNNL_*", "RAYON_*",
    "TOKENIZERS_*", "SAFETENSORS_*", "ROCM_*", "ROCR_*", "HIP_*", "HSA_*", "MIOPEN_*", "PYTORCH_ROCM_*",
    "ZE_*", "SYCL_*", "ONEAPI_*", "NEURON_*", "HABANA_*", "TPU_*", "XLA_*", "IB_*", "FI_*",
    "GPU_DEVICE_ORDINAL",
    # sources of the base model, including HF_TOKEN for gated models
    "HF_*", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_*", "TRANSFORMERS_*", "MODELSCOPE_*",
)  # fmt: skip
"""Names, or prefixes ending in `*`."""

NEVER = ("FLORIN_*",)
"""Never passed, not even with `--pass-env`: Florin's own keys and settings."""


def split(environ: Mapping[str, str], passed: Iterable[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """The engine's environment, and the names of the variables withheld. `passed`: further names, or prefixes
    ending in `*`."""
    allowed = (*ALLOWED, *passed)
    given = {n: v for n, v in environ.items() if _matches(n, allowed) and not _matches(n, NEVER)}
    return given, tuple(sorted(environ.keys() - given.keys()))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
