"""The server that forks engines (forked.py). It runs in the engines' environment."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile

from deploy.demo.child_site import sitecustomize
from tests.support.fork_server import run

IMPORTS = (
    "peft",
    "transformers.models.llama.modeling_llama",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)


def main(fd: int) -> None:
    own = os.environ["PYTHONPATH"].split(os.pathsep)

    def load() -> None:
        for name in IMPORTS:
            importlib.import_module(name)

    def prepare() -> None:
        """Do what Python, child_site and vLLM do when they start, and read the environment."""
        path = os.environ["PYTHONPATH"].split(os.pathsep)
        sys.path[:] = [*path, *(folder for folder in sys.path if folder not in own)]
        tempfile.tempdir = None
        importlib.import_module("vllm.logger")._configure_vllm_root_logger()
        sitecustomize.end_with_parent()
        if cpu := os.environ.get("FLORIN_ENGINE_CPU"):
            sitecustomize.fork_instead(cpu)
            for name, patch in sitecustomize.PATCHES.items():
                patch(importlib.import_module(name))

    run(fd, load, prepare)
    os._exit(0)  # the libraries would report objects that are left
