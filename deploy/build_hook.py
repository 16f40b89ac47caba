"""Writes the commit into wheels and source archives, for `gateway/observability/build_info.py`.

Hatchling calls it. `BUILD_COMMIT` names the commit where the build has no `.git`, as in an image.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location(
            "build_info", root / "gateway" / "observability" / "build_info.py"
        )
        assert spec
        assert spec.loader
        build_info = importlib.util.module_from_spec(spec)  # by its path: Florin is not installed here
        spec.loader.exec_module(build_info)
        commit = os.environ.get("BUILD_COMMIT") or build_info.checked_out(root)
        if commit:
            self._written = Path(tempfile.mkdtemp()) / "commit.txt"
            self._written.write_text(commit + "\n")
            build_data["force_include"][str(self._written)] = build_info.COMMIT_FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        if hasattr(self, "_written"):
            self._written.unlink()
            self._written.parent.rmdir()
