"""`florin engine run --merge`: fetches a version and merges it into the weights of this host's base model."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from adapters.conversion.adapter_files import read_adapter
from adapters.conversion.base_weights import read_base_weights
from adapters.conversion.output import write_merged_model
from adapters.engine_agent.artifact_download import download
from adapters.engine_agent.gateway_client import GatewayClient


async def merged_model(
    gateway: GatewayClient, engine: str, version: str, base: Path, root: Path
) -> tuple[Path, str]:
    """The directory of the merged model, and its name on engines. It is made once, below `root`, in place of
    what was merged there before. Raises GatewayDownError, GatewayRefusedError, StageError, RejectedError,
    OSError."""
    source = await gateway.merge_source(engine, version)
    hexdigest = source["digest"].removeprefix("sha256:")
    merged = root / f"{hexdigest}-{crc32(str(base).encode()):08x}"
    if not await asyncio.to_thread(merged.is_dir):
        files = await asyncio.to_thread(_emptied, root)
        await download(gateway, hexdigest, source["size_bytes"], files)
        await asyncio.to_thread(_merge, files, base, merged)
    return merged, str(source["engine_name"])


def _emptied(root: Path) -> Path:
    """A directory for the adapter's files, which is all that is left below `root`."""
    shutil.rmtree(root, ignore_errors=True)
    files = root / "adapter"
    files.mkdir(parents=True, mode=0o700)
    return files


def _merge(adapter: Path, base: Path, out: Path) -> None:
    source, weights = read_adapter(adapter), read_base_weights(base)
    write_merged_model(out, source, weights, None, replace=False)


def with_weights(command: Sequence[str], model: str, merged: Path, name: str) -> tuple[str, ...]:
    """`command`, for the merged model under its name on engines. vLLM takes the last of a repeated flag."""
    words = list(command)
    if "serve" in words[:-1] and words[position := words.index("serve") + 1] == model:
        words[position] = str(merged)
    else:
        words += ["--model", str(merged)]
    return (*words, "--served-model-name", name)
