"""The bench goes on without a peer that does not work."""

import pytest

from loadtests.overhead import peers


@pytest.mark.parametrize("name", peers.PEERS)
def test_the_pinned_version_is_the_locked_one(name: str):
    package = (peers.REQUIREMENTS / f"{name}.in").read_text().partition("[")[0].partition("==")[0].strip()
    locked = (peers.REQUIREMENTS / f"{name}.txt").read_text()
    assert f"\n{package}=={peers.version(name)} " in locked
