"""A certified OpenID provider on 127.0.0.1, in a process of its own: see openid_provider.mjs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.missing import missing
from tests.support.waiting import PATIENCE_S
from tests.tools.npm import NpmUnavailableError
from tests.tools.openid.environment import openid_environment

_SCRIPT = Path(__file__).with_suffix(".mjs")


@dataclass
class OpenidProvider:
    url: str
    process: asyncio.subprocess.Process

    async def change(self, what: str, given: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, given]).encode() + b"\n")
        assert await _line(self.process) == what


@contextlib.asynccontextmanager
async def openid_provider(
    directory: Path, people: dict[str, dict[str, Any]], *, key: str, port: int
) -> AsyncIterator[OpenidProvider]:
    """`directory`: for its script, which finds its packages beside itself. `people`: name → claims. `key`: id of
    its first key."""
    try:
        packages = openid_environment() / "node_modules"
    except NpmUnavailableError as error:
        missing(error)
    script = _put_beside(packages, directory)
    process = await asyncio.create_subprocess_exec(
        "node", str(script), json.dumps({"port": port, "people": people, "key": key}),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(directory)},
    )  # fmt: skip
    try:
        yield OpenidProvider(await _line(process), process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _put_beside(packages: Path, directory: Path) -> Path:
    """The script, where it finds its packages."""
    directory.mkdir(exist_ok=True)
    if not (directory / packages.name).exists():
        (directory / packages.name).symlink_to(packages)
    script = directory / _SCRIPT.name
    script.write_bytes(_SCRIPT.read_bytes())
    return script


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
    assert line, "The OpenID provider has ended."
    return line.decode().strip()
