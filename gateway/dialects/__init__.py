"""The APIs that clients speak, beside OpenAI's chat and completions, which engines speak themselves.

A dialect is an `Endpoint` (see `gateway.dataplane.request`) whose requests are translated onto one of the
engine's own routes, and whose answers are translated back by a `Reply` (see `gateway.dataplane.reply`).
Everything between, from limits to resuming a stream on another engine, is the same for all of them.

`endpoints` is the table of all that the data plane serves. All of it is pure.
"""
