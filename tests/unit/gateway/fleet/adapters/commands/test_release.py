"""florin adapter release"""

from __future__ import annotations

import pytest

from gateway.fleet.adapters.schemas.adapters import ReleasedVersion
from tests.support.samples import sample

PATH = "/admin/v1/adapters/acme/support/versions/v2/release"


@pytest.mark.parametrize("name", ["v2", "2"])
@pytest.mark.parametrize(
    ("released", "said"),
    [(True, "acme/support@v2 is released"), (False, "acme/support@v2 was neither quarantined nor failed")],
)
def test_a_version_is_released(fake, name, released, said):
    body = sample(ReleasedVersion, adapter="acme/support", version="v2", released=released)
    fake.answer("POST", PATH, body)
    result = fake.florin("adapter", "release", "acme/support", name, "--yes")
    assert result.exit_code == 0
    assert said in result.stdout + result.stderr
    assert [asked[:2] for asked in fake.asked] == [("POST", PATH)]
