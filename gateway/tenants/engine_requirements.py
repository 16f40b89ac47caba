"""What requests and adapters of a tenant require of engines. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.model import DEDICATED
from adapters.placement.requirements import combined
from adapters.registry.catalog import Catalog
from gateway.tenants.directory import Directory


def engine_requirements(
    directory: Directory, catalog: Catalog, caller: str, owner: str = ""
) -> Mapping[str, str]:
    """See `Directory.requires`. With the label of engines that are dedicated to the caller, if there are
    any: requests for its own adapters and for base models may go there."""
    requires = directory.requires(caller, owner)
    if owner not in ("", caller) or caller not in catalog.tenants_with_engines:
        return requires
    return combined(requires, {DEDICATED: caller})
