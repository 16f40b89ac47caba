"""The option `--json` of a measurement, and the file that it writes."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from loadtests.overhead import cpu


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")


def write(path: Path | None, **results: Any) -> None:
    """The results, with when and on what they were measured; nothing if no file was named."""
    if path is not None:
        document = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": cpu.machine(), **results,
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
