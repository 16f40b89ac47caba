from __future__ import annotations

import os

import pytest

from gateway.observability.metrics import Metrics
from gateway.runtime.disk_space import DiskSpace, DiskUsage, disk_usage

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "size", "low"),
    [
        (0, GIB, True),
        (GIB // 11, GIB, True),
        (GIB // 9, GIB, False),
        (GIB - 1, 1000 * GIB, True),
        (2 * GIB, 1000 * GIB, False),  # a small part of a large disk
        (0, 0, False),  # a file system that has no size has nothing to fill
    ],
)
def test_low_is_little_and_little_in_proportion(free, size, low):
    assert DiskUsage(free, size).low == low


async def test_what_is_found_is_shown_and_told(tmp_path, monkeypatch):
    metrics = Metrics()
    disks = DiskSpace({"state": tmp_path / "not" / "there" / "yet", "gone": tmp_path}, metrics)
    assert list(disks.conditions()) == []
    await disks.look()
    assert list(disks.conditions()) == []
    size = disk_usage(tmp_path).size
    assert metrics.registry.get_sample_value("florin_disk_size_bytes", {"directory": "state"}) == size

    real = os.statvfs

    def full(path):
        if path == tmp_path / "not":
            raise OSError("gone")
        return os.statvfs_result((*real(path)[:3], 0, 0, *real(path)[5:]))

    (tmp_path / "not").mkdir()
    monkeypatch.setattr(os, "statvfs", full)
    await disks.look()
    assert metrics.registry.get_sample_value("florin_disk_free_bytes", {"directory": "gone"}) == 0
    [found] = disks.conditions()
    assert (found.code, found.subject) == ("disk_low", "gone")
    assert found.message.startswith("0 MiB of ")
