"""What clients may ask of an engine, field by field.

vLLM's request protocol has far more fields than OpenAI's, and some of them cost other tenants dearly: they
fetch URLs from inside the network, compile grammars for minutes, escape metering, or end the engine. So
each field has a row in a table, with what happens to it and why, and what has no row does not reach an
engine.

`rule` is the vocabulary, `chat` and `completions` are the tables, `media`, `messages` and `grammars` the
checks that need more than a line. All of it is pure. tests/engine/test_fields.py compares the tables with
the request models of the installed vLLM, and names each field that has no row yet.
"""
