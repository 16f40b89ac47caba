"""docs/reference/parameters.md, made from the tables: `python -m deploy.docs`."""

from __future__ import annotations

from gateway.fields.chat import CHAT
from gateway.fields.checks import That
from gateway.fields.completions import COMPLETIONS
from gateway.fields.grammars import MAX_CHOICE_CHARACTERS, MAX_CHOICES
from gateway.fields.messages import MESSAGE, PARTS
from gateway.fields.patterns import MAX_COUNTS, MAX_LENGTH, MAX_OPTIONAL, MAX_ROW
from gateway.fields.rule import FieldAction, Rule, Table
from gateway.fields.schemas import BOUNDS, MAX_DEPTH, PRINTED

_INTRO = """\
# Parameters

Every field of a request that vLLM 0.32 and 0.33 or OpenAI's client know, and what Florin does with it. Made
from the tables in `gateway/fields/`; a test holds this page to them, and them to vLLM's own request models.

- **passed**: the engine gets it, if its type is right.
- **bounded**: the engine gets it if it stays within bounds; else the answer is 400 `invalid_value`, and the
  message has the bound.
- **dropped**: accepted and left out, because vLLM ignores it or Florin decides it. Applications written for
  OpenAI run unchanged.
- **replaced**: Florin reads it, and sends the engine a value of its own.
- **refused**: 400 `unsupported_parameter`, because an answer without it would not be what was asked for.
  `null` is the same as absent, here and everywhere.

A field that is in none of these tables is dropped, too: vLLM 0.32 ignores what it does not know, so nothing
changes today, and a later vLLM's new field reaches no engine before somebody has looked at it.
`florin_unknown_fields_total` counts them, the log has each name once (level DEBUG), and
`FLORIN_PASS_FIELDS` passes named ones on.
"""
_MEDIA = """\
Pictures, sounds and films come as `data:` URLs or `input_audio`, within the body's limit. The engine would
fetch other URLs itself, from inside the operator's network, so these are taken only from hosts in
`FLORIN_MEDIA_HOSTS`; the others are 400 `media_not_allowed`.
"""
_GRAMMARS = f"""\
## Structured outputs

`response_format` and `structured_outputs` take a JSON schema (an object, or a string in `json`). What one
request has the engine compile is bounded, all schemas together; beyond, the engine would compile for long, or
stop for all of its requests at each token:

- At most {{schemas}}.
- At most {MAX_DEPTH} levels; `$ref` leads to the schema's own parts.
- A `choice` of at most {MAX_CHOICES:,} texts, {MAX_CHOICE_CHARACTERS:,} characters in all.
- A regular expression (also a `pattern`) of at most {MAX_LENGTH:,} characters. Parts that may be left out
  (`?`, `*`, `{{{{0,3}}}}`): at most {MAX_ROW} in a row, {MAX_OPTIONAL} in all. `{{{{…}}}}` behind classes and
  groups: at most {MAX_COUNTS:,}, added up.
- The same holds for tools whose call is demanded (`tool_choice`) or `strict`. Of tools that are only offered,
  {PRINTED["bytes"]:,} bytes are taken.
- Grammars in a grammar language and structural tags are refused unless `FLORIN_PASS_FIELDS` names them: a few
  lines of grammar can stop an engine for seconds at each token.
"""


def page() -> str:
    """The whole page."""
    shared = {name: rule for name, rule in CHAT.items() if COMPLETIONS.get(name) is rule}
    parts = {kind: rule for kind, (_, rule) in PARTS.items()}
    sections = [
        _INTRO,
        "## Of chat and of completions\n\n" + _table(shared),
        "## Of chat alone\n\n" + _table(_without(CHAT, shared)),
        "## Of completions alone\n\n" + _table(_without(COMPLETIONS, shared)),
        "## Messages\n\n" + _table(MESSAGE),
        "## Parts of a message's content, by `type`\n\n" + _MEDIA + "\n" + _table(parts),
        _GRAMMARS.format(schemas=", ".join(f"{most:,} {of}" for most, of in BOUNDS.values())),
    ]
    return "\n".join(sections)


def _without(table: Table, others: Table) -> Table:
    return {name: rule for name, rule in table.items() if name not in others}


def _table(table: Table) -> str:
    order = list(FieldAction)
    rows = sorted(table.items(), key=lambda row: (order.index(row[1].action), row[0]))
    head = "| field | is | it must | why |\n| --- | --- | --- | --- |\n"
    return head + "".join(_row(*row) for row in rows)


def _row(name: str, rule: Rule) -> str:
    harmless = " or ".join(f"`{_json(value)}`" for value in rule.harmless)
    why = f"{rule.why}; {harmless} is dropped" if harmless else rule.why
    must = rule.check.must if isinstance(rule.check, That) else ""
    return f"| `{name}` | {rule.action} | {must} | {why} |\n"


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("'", '"')
