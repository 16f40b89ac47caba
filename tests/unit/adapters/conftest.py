from __future__ import annotations

import pytest

from tests.unit.adapters.installation import Installation


@pytest.fixture
async def site(tmp_path):
    site = Installation(tmp_path)
    await site.seed()
    return site


@pytest.fixture
async def worker(site):
    worker = site.worker()
    await worker.follow()
    return worker
