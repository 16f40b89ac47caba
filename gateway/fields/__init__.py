"""What clients may ask of an engine, field by field.

vLLM's requests have far more fields than OpenAI's, and some of them harm other tenants: they fetch URLs from
inside the network, compile grammars for minutes, escape metering, or crash the engine. So each field has a
row in a table that says what happens to it and why. Fields without a row do not reach an engine.

`rule` defines the vocabulary; `tables` lists the fields of each endpoint; `media`, `messages` and `grammars`
hold the longer checks. All of it is pure. tests/engine/test_fields.py compares the tables with the request
models of the installed vLLM, and names every field that has no row yet.
"""
