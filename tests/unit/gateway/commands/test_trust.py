"""florin engine trust"""

from __future__ import annotations

PATH = "/admin/v1/engines/a1/trust"


def test_an_engine_is_trusted(fake):
    fake.answer("POST", PATH, {"engine": "a1", "base": "llama", "fingerprints_forgotten": 3})
    result = fake.florin("engine", "trust", "a1", "--yes")
    assert result.exit_code == 0
    assert (
        result.stdout
        == "a1 is now the reference for llama; 3 versions get new references at their next loads.\n"
    )
    assert [asked[:2] for asked in fake.asked] == [("POST", PATH)]
