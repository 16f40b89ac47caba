"""All faults and oddities: the modules that are imported here register them."""

from __future__ import annotations

from tests.broken import oddities  # noqa: F401  # its decorators fill the table
from tests.broken.case import FAULTS, ODDITIES
from tests.broken.config_faults import lie_about_rank
from tests.broken.file_faults import one_too_small, other_shape, transposed

__all__ = ["FAULTS", "ODDITIES", "OF_SHAPES"]
OF_SHAPES = frozenset({other_shape, transposed, one_too_small, lie_about_rank})
"""Faults of which one may undo another."""
