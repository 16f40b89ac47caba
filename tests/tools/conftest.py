from __future__ import annotations

from pathlib import Path

from tests.support.forms import LONG
from tests.support.verified import unchanged

UNCHANGED = [] if LONG else unchanged()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """They are not even imported."""
    return (
        True
        if collection_path.parent == Path(__file__).parent and collection_path.name in UNCHANGED
        else None
    )


def pytest_report_header() -> str:
    return f"tools unchanged since their tests passed, which are left out: {', '.join(UNCHANGED) or 'none'}"
