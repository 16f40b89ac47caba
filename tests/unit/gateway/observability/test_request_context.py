"""What of a client's headers is believed: its own request id, and the trace that the request is part of."""

from __future__ import annotations

import pytest

from gateway.observability.request_context import RequestContext, traceparent

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def read(*headers: tuple[bytes, bytes]) -> RequestContext:
    context = RequestContext("req-1")
    context.read(list(headers))
    return context


@pytest.mark.parametrize("name", [b"x-request-id", b"x-client-request-id"])
def test_a_clients_own_id_is_kept_beside_florins(name):
    context = read((b"accept", b"*/*"), (name, b"job-7/step.3:retry=1"))
    assert (context.request_id, context.client_request_id) == ("req-1", "job-7/step.3:retry=1")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"two words",
        b"a\tb",
        b"a\nERROR florin: forged",
        b"x" * 129,
        b'"quoted"',
        b"\xff\xfe",
        "ü".encode(),
    ],
)
def test_an_id_that_could_forge_a_line_or_a_header_is_left_out(value):
    assert read((b"x-request-id", value)).client_request_id == ""


def test_a_trace_goes_on_with_its_state():
    state = b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE,t0@vendor=a b"
    context = read((b"traceparent", PARENT), (b"tracestate", state))
    assert context.trace == {"traceparent": PARENT.decode(), "tracestate": state.decode()}
    assert context.trace_id == "0af7651916cd43dd8448eb211c80319c"


def test_state_in_several_headers_is_one():
    context = read((b"tracestate", b"a=1"), (b"traceparent", PARENT), (b"tracestate", b"b=2,,c=3"))
    assert context.trace["tracestate"] == "a=1,b=2,,c=3"


@pytest.mark.parametrize(
    "parent",
    [
        b"",
        b"hello",
        PARENT.upper(),
        PARENT + b"-more",  # version 00 ends here
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + PARENT[52:],
        PARENT[:-3],
    ],
)
def test_invalid_traceparent_is_dropped_with_its_state(parent):
    assert read((b"traceparent", parent), (b"tracestate", b"a=1")).trace == {}


def test_later_trace_version_is_reduced_to_version_00():
    assert traceparent(b"cc" + PARENT[2:] + b"-what-the-future-holds") == PARENT.decode()


def test_two_traceparents_are_ignored():
    assert read((b"traceparent", PARENT), (b"traceparent", PARENT)).trace == {}


@pytest.mark.parametrize(
    "state",
    [
        b"no-equals",
        b"A=1",
        b"a=" + b"x" * 600,
        b"a=1\r\nx-evil: 1",
        b"a=\xff",
        b"a=b=c",
        ",".join(["a=1"] * 33).encode(),
    ],
)
def test_a_malformed_state_costs_only_the_state(state):
    assert read((b"traceparent", PARENT), (b"tracestate", state)).trace == {"traceparent": PARENT.decode()}
