"""What a machine lacks costs it the tests that need it. CI must lack nothing that can be had from where Florin's own
dependencies come from, so that none of those tests is skipped unseen. What only the machine itself can have is skipped
there too. pytest says at its end what was skipped, and why."""

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


def absent(reason: object) -> NoReturn:
    """Skip the test, in CI too: nothing but the machine's own packages, or its kernel, has what it needs."""
    pytest.skip(str(reason))


@contextlib.contextmanager
def optional(error: type[Exception]) -> Iterator[None]:
    """A part of a test that may be left out when it raises `error`, which says what is missing; not in CI."""
    try:
        yield
    except error:
        if in_ci():
            raise
