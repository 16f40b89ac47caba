"""florin batch …"""

from __future__ import annotations

import json

from gateway.batches.documents import BatchStatus
from gateway.batches.schemas import Batch
from tests.support.samples import sample

BATCH = sample(
    Batch,
    id="batch_1",
    tenant="acme",
    status=BatchStatus.IN_PROGRESS,
    request_counts={"total": 1000, "completed": 412, "failed": 3},
)
FAILED = BATCH | {
    "status": "failed",
    "errors": {
        "object": "list",
        "data": [{"code": "invalid_url", "line": 7, "message": "`url` must be x.", "param": "url"}],
    },
}


def test_a_list(fake):
    path = "/admin/v1/batches?tenant=acme&status=in_progress&limit=5"
    fake.answer("GET", path, {"data": [BATCH], "has_more": True})
    done = fake.florin(
        "batch", "list", "--tenant", "acme", "--status", "in_progress", "--limit", "5", "--json"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["data"] == [BATCH]
    text = fake.florin("batch", "list", "--tenant", "acme", "--status", "in_progress", "--limit", "5").output
    assert "acme" in text
    assert "412" in text


def test_one_that_failed(fake):
    fake.answer("GET", "/admin/v1/batches/batch_1", FAILED)
    done = fake.florin("batch", "show", "batch_1")
    assert done.exit_code == 0, done.output
    assert "line 7: `url` must be x." in done.output
    assert "412 answered, 3 failed" in done.output
