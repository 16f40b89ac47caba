"""The two forms of the suite. The short one guards every promise, and runs before each change lands. The long one,
`make test-long`, sets `FLORIN_TESTS=long`: both databases throughout, every phase of the crash matrices, random search.

- `@pytest.mark.long`: only in the long form.
- A test on `ledger_url` or `blank_url` runs on SQLite, and in the long form on PostgreSQL, too. Where the SQL differs
  (locks, upserts, JSON, sums, migrations), `@pytest.mark.both_databases` has the short form run both.
- `some_of`: for matrices of which the short form runs a few cases.
- `LONG`: for tests whose cases are counted or drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

LONG = os.environ.get("FLORIN_TESTS", "") == "long"


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only the long form runs. There, a random search has an hour."""
    if LONG:
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker(pytest.mark.timeout(3600), append=False)
        return
    left_out = [item for item in items if _only_long(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _only_long(item)]


def some_of(names: Iterable[str], *short: str) -> list[Any]:
    """Cases of a matrix, for `parametrize`: those named `short` in both forms, all others in the long one."""
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]


def _only_long(item: pytest.Item) -> bool:
    if any(item.iter_markers("long")):
        return True
    callspec = getattr(item, "callspec", None)
    databases = {callspec.params.get(name) for name in ("ledger_url", "blank_url")} if callspec else set()
    return "postgresql" in databases and not any(item.iter_markers("both_databases"))
