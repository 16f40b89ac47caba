"""The group that the commands join."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="What each customer used and cost.")
