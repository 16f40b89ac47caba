"""What a machine lacks costs it the tests that need it; CI must lack nothing, so that none is skipped unseen."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() == "true"


def missing(reason: object) -> NoReturn:
    """End the test: skipped, or failed in CI."""
    if in_ci():
        pytest.fail(f"CI must have it: {reason}", pytrace=False)
    pytest.skip(str(reason))


@contextlib.contextmanager
def optional(error: type[Exception]) -> Iterator[None]:
    """A part of a test that may be left out when it raises `error`, which says what is missing; not in CI."""
    try:
        yield
    except error:
        if in_ci():
            raise
