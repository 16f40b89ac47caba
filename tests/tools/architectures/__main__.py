"""Generates adapters/checks/architectures.json: `python -m tests.tools.architectures`.

Runs the probe in the engines' environment (installed once per machine, see `deploy.demo.engine_env`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy.demo.engine_env import EngineEnvError, engine_environ, ensure_engine_env

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "adapters" / "checks" / "architectures.json"


def probed(python: Path, *names: str) -> dict[str, Any]:
    """The table, or the rows of some architectures, as the engines' environment has them."""
    environ = engine_environ()
    environ["PYTHONPATH"] = f"{ROOT}:{environ['PYTHONPATH']}"
    command = [str(python), "-m", "tests.tools.architectures.probe", *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        raise EngineEnvError(f"The models could not be examined:\n{done.stderr[-2000:]}")
    table: dict[str, Any] = json.loads(done.stdout)
    return table


def written(table: dict[str, Any]) -> str:
    """The file's text: a line for each architecture, so that a new release's changes can be read."""
    lines = []
    for key, value in table.items():
        if key in ("architectures", "unknown", "model_types"):
            rows = ",\n".join(
                f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}"
                for name, row in sorted(value.items())
            )
            lines.append(f"{json.dumps(key)}: {{\n{rows}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    console = Console(stderr=True)
    try:
        table = probed(ensure_engine_env(console).python)
    except EngineEnvError as error:
        sys.exit(str(error))
    TABLE.write_text(written(table))
    console.print(
        f"{len(table['architectures'])} architectures, {len(table['unknown'])} without shapes: {TABLE}"
    )


if __name__ == "__main__":
    main()
