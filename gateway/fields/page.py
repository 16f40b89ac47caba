"""Generates docs/reference/parameters.md from the tables, for `python -m tests.tools.docs`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.fields import anthropic_messages
from gateway.fields.checks import That
from gateway.fields.grammars import MAX_CHOICE_CHARACTERS, MAX_CHOICES
from gateway.fields.json_schemas import BOUNDS, MAX_DEPTH, RENDERED
from gateway.fields.messages import MESSAGE, PARTS
from gateway.fields.patterns import MAX_COUNTS, MAX_LENGTH, MAX_OPTIONAL, MAX_ROW
from gateway.fields.registry import POOLING, TOKENIZATION
from gateway.fields.response_items import ITEMS, REFUSED_ITEMS
from gateway.fields.response_items import PARTS as RESPONSES_PARTS
from gateway.fields.response_tools import GRAMMAR, REFUSED_TOOLS, TOOLS
from gateway.fields.responses import FORMAT, REASONING, RESPONSES, TEXT
from gateway.fields.rule import FieldAction, Rule, Table
from gateway.fields.tables import CHAT, COMPLETIONS

_INTRO = """\
# Parameters

Every request field that vLLM 0.32 and 0.33 or OpenAI's client know, and what Florin does with it. This page
is generated from the tables in `gateway/fields/`; a test compares the tables with vLLM's own request models.

- **passed**: sent to the engine if its type is right.
- **bounded**: sent to the engine if it is within its bounds. Otherwise the answer is 400 `invalid_value`, and
  the message states the bound.
- **dropped**: accepted but not sent, because vLLM ignores it or Florin sets it. Applications written for
  OpenAI run unchanged.
- **replaced**: read by Florin, which sends the engine a value of its own.
- **refused**: 400 `unsupported_parameter`, because ignoring it would change the answer.

`null` always means the same as an absent field.

Fields in none of these tables are dropped. vLLM 0.32 ignores unknown fields too, so nothing changes today;
but a new field of a later vLLM reaches no engine before it has been reviewed. `florin_unknown_fields_total`
counts them, the log has each name once (level DEBUG), and `FLORIN_PASS_FIELDS` lists fields to pass on.
"""
_MEDIA = """\
Send images, audio and video as `data:` URLs or `input_audio`; the limit of the body's size applies. The
engine fetches other URLs from inside the operator's network, so only those of hosts that the operator has
allowed (`FLORIN_MEDIA_HOSTS`, or the tenant's policy) are accepted; for others the answer is 400
`media_not_allowed`.
"""
_GRAMMARS = f"""\
## Structured outputs

`response_format` and `structured_outputs` accept a JSON schema (an object, or in `json` also a string). All
schemas of a request together have these bounds; larger ones would keep the engine compiling for long, or
delay every token of all its requests:

- At most {{schemas}}.
- At most {MAX_DEPTH} levels; `$ref` must point into the same schema.
- A `choice` of at most {MAX_CHOICES:,} strings with {MAX_CHOICE_CHARACTERS:,} characters in total.
- Regular expressions (and `pattern`s) of at most {MAX_LENGTH:,} characters. Optional parts (`?`, `*`,
  `{{{{0,3}}}}`): at most {MAX_ROW} in a row and {MAX_OPTIONAL} in total. The counts in `{{{{…}}}}` after
  classes and groups: at most {MAX_COUNTS:,} in total.
- The same bounds hold for tools that must be called (`tool_choice`) or are `strict`. Tools that are only
  offered may have {RENDERED["bytes"]:,} bytes.
- An operator can refuse them all (`FLORIN_STRUCTURED_OUTPUTS`, or the tenant's policy).
- Grammars in a grammar language and structural tags are refused unless `FLORIN_PASS_FIELDS` allows them: a
  few lines of grammar can stop an engine for seconds at each token.
"""
_POOLING = """\
## Embeddings, rerank and score

For models with engines that embed or score: see [Embeddings](../embeddings.md).
"""
_TOKENIZATION = """\
## Tokenize and detokenize

Also at `/tokenize` and `/detokenize`, as in vLLM.
"""
_RESPONSES = """\
## Responses

The fields of `/v1/responses`, which is translated onto chat. Their values have the bounds of the chat's
fields that they become. {same} are as for chat.

{fields}
### Items of `input`

{items}
Refused items: {refused}.

### Parts of an item's content

{parts}
### Tools

{tools}
Refused tools: {hosted}.
"""


_ANTHROPIC = """\
## Anthropic's Messages

`/v1/messages` and `/v1/messages/count_tokens` are translated onto chat ([how](../anthropic.md)). What a field
becomes is checked again as the chat's field that it is sent as, with the bounds above. A count takes those
fields that change the prompt. A test compares these tables with the types of Anthropic's own client.
"""


def page() -> str:
    """The whole page."""
    shared = {name: rule for name, rule in CHAT.items() if COMPLETIONS.get(name) is rule}
    parts = {kind: rule for kind, (_, rule) in PARTS.items()}
    sections = [
        _INTRO,
        "## Chat and completions\n\n" + _table(shared),
        "## Chat only\n\n" + _table(_without(CHAT, shared)),
        "## Completions only\n\n" + _table(_without(COMPLETIONS, shared)),
        "## Messages\n\n" + _table(MESSAGE),
        "## Parts of a message's content, by `type`\n\n" + _MEDIA + "\n" + _table(parts),
        _POOLING,
        *(f"### /v1/{name}\n\n" + _table(table) for name, table in POOLING.items()),
        _TOKENIZATION,
        *(f"### /v1/{name}\n\n" + _table(table) for name, table in TOKENIZATION.items()),
        _responses(),
        _GRAMMARS.format(schemas=", ".join(f"{most:,} {noun}" for most, noun in BOUNDS.values())),
        _ANTHROPIC + "\n" + _table(anthropic_messages.MESSAGES),
        "### Parts of these fields\n\n" + _table(_flat(anthropic_messages.PARTS)),
        "### Blocks of a message's content\n\n" + _table(_flat(anthropic_messages.BLOCKS)),
        "### Blocks that are refused, by `type`\n\n" + _table(anthropic_messages.REFUSED_BLOCKS),
    ]
    return "\n".join(sections)


def _responses() -> str:
    same = {name for name, rule in RESPONSES.items() if CHAT.get(name) is rule}
    own = {name: rule for name, rule in RESPONSES.items() if name not in same}
    parts = {"text": TEXT, "text.format": FORMAT, "reasoning": REASONING}
    return _RESPONSES.format(
        same=", ".join(f"`{name}`" for name in sorted(same)),
        fields=_table({**own, **_joined(parts)}),
        items=_table(_joined(ITEMS)),
        refused=_refused(REFUSED_ITEMS),
        parts=_table(_joined(RESPONSES_PARTS)),
        tools=_table(_joined({**TOOLS, "custom.format": GRAMMAR})),
        hosted=_refused(REFUSED_TOOLS),
    )


def _joined(tables: Mapping[str, Table]) -> Table:
    """All rows but `type`, with the table's name before each."""
    return {
        f"{where}.{name}": rule
        for where, table in tables.items()
        for name, rule in table.items()
        if name != "type" or rule.action is FieldAction.REFUSE
    }


def _refused(reasons: Mapping[str, str]) -> str:
    """Types by the reason why they are refused."""
    kinds: dict[str, list[str]] = {}
    for kind, reason in reasons.items():
        kinds.setdefault(reason, []).append(f"`{kind}`")
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in kinds.items())


def _flat(tables: Mapping[str, Table]) -> Table:
    return {f"{parent}.{name}": rule for parent, table in tables.items() for name, rule in table.items()}


def _without(table: Table, others: Table) -> Table:
    return {name: rule for name, rule in table.items() if name not in others}


def _table(table: Table) -> str:
    order = list(FieldAction)
    rows = sorted(table.items(), key=lambda row: (order.index(row[1].action), row[0]))
    head = "| field | action | must | notes |\n| --- | --- | --- | --- |\n"
    return head + "".join(_row(*row) for row in rows)


def _row(name: str, rule: Rule) -> str:
    harmless = " or ".join(f"`{_json(value)}`" for value in rule.harmless)
    reason = f"{rule.why}; {harmless} is dropped" if harmless else rule.why
    must = rule.check.must if isinstance(rule.check, That) else ""
    return f"| `{name}` | {rule.action} | {must} | {reason} |\n"


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("'", '"')
