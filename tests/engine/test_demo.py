"""`florin demo --exit`, whole: what a visitor runs first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_demo_transcript_passes(tmp_path: Path):
    command = [sys.executable, "-c", "import gateway.cli; gateway.cli.main()", "demo", "--exit"]
    env_file = tmp_path / "env"
    played = subprocess.run(
        [*command, "--env-file", str(env_file)], capture_output=True, text=True, check=False
    )
    assert played.returncode == 0, played.stdout + played.stderr
    assert "All checks passed." in played.stdout
    assert "24 of 24 answered by the right adapter" in played.stdout
    assert "Traceback" not in played.stdout + played.stderr
    assert "FLORIN_ENGINE_PIDS=" in env_file.read_text()
