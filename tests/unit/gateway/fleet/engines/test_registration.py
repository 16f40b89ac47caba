from __future__ import annotations

from dataclasses import replace

from adapters.model import Drain
from gateway.fleet.engines.operations.registration import registered_again
from tests.support.harness import engine_document

LOADS = engine_document("e1")
MERGED = replace(LOADS, serves="acme/support@v1", merged_as="fl-1")


def test_an_engine_that_is_merged_no_more_does_not_rest_on():
    rests = replace(MERGED, state="draining", drain=Drain(0, moved=True), registered=7)
    assert registered_again(rests, MERGED) == rests
    assert registered_again(rests, LOADS) == replace(LOADS, registered=7)
    drained = replace(rests, drain=Drain(9, moved=True))
    assert registered_again(drained, LOADS) == replace(
        LOADS, registered=7, state="draining", drain=drained.drain
    )
