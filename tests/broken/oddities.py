"""What is odd about an adapter, but refuses nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.broken.case import (
    DTYPES,
    TEMPLATE,
    TEMPLATE_HASH,
    CannotBreakError,
    Case,
    oddity,
    some_tensor,
)


@oddity("chat_template_differs")
def other_template(draw: st.DrawFn, case: Case) -> Case:
    base = replace(case.base, chat_template=draw(st.sampled_from([TEMPLATE_HASH, ""])))
    text = draw(st.sampled_from(["{{ messages }}", TEMPLATE + "x"]))
    name, content = draw(
        st.sampled_from(
            [
                ("chat_template.jinja", text),
                ("chat_template.json", {"chat_template": text}),
                ("tokenizer_config.json", {"chat_template": text}),
                ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": text}]}),
            ]
        )
    )
    return replace(case, base=base, files={}).with_file(name, content)


@oddity("chat_template_unknown")
def template_of_unknown(draw: st.DrawFn, case: Case) -> Case:
    del draw
    return replace(case, base=replace(case.base, chat_template=None), files={}).with_file(
        "chat_template.jinja", "{{ messages }}"
    )


@oddity("mixed_dtypes")
def mixed_types(draw: st.DrawFn, case: Case) -> Case:
    name = some_tensor(draw, case)
    other = draw(st.sampled_from([d for d in sorted(DTYPES) if d != case.dtype]))
    return replace(case, tensors=case.tensors | {name: (other, case.tensors[name][1])})


@oddity("module_without_effect")
def idle_module(draw: st.DrawFn, case: Case) -> Case:
    if len(case.tensors) < 4:
        raise CannotBreakError
    return case.holding([some_tensor(draw, case)], 0.0)


@oddity("scaling_extreme")
def far_scaling(draw: st.DrawFn, case: Case) -> Case:
    far = st.floats(1e3, 1e4) | st.floats(1e-9, 1e-4)
    # Small weights: so that a large factor does not overflow.
    return case.configured(lora_alpha=draw(far), alpha_pattern={}).holding(case.tensors, 2.0**-6)


@oddity("base_revision_unsure")
def revised(draw: st.DrawFn, case: Case) -> Case:
    return case.configured(revision=draw(st.sampled_from(["v2", "0123abcd", "refs/pr/3"])))


@oddity("other_weights")
def more_weights(draw: st.DrawFn, case: Case) -> Case:
    return case.with_file(draw(st.sampled_from(["model.safetensors", "x.gguf", "adapter_0.pt", "x.pkl"])), "")


@oddity("files_ignored")
def stranger_beside(draw: st.DrawFn, case: Case) -> Case:
    return case.with_file(draw(st.sampled_from(["inference.py", "metrics.json", "Adapter_config.json"])), "")


@oddity("file_invalid")
def rubbish_beside(draw: st.DrawFn, case: Case) -> Case:
    name = draw(st.sampled_from(["added_tokens.json", "tokenizer_config.json", "chat_template.json"]))
    text = draw(st.sampled_from(["", "[]", "{", "7", '{"a": "\\ud800"}', "[" * 100_000]))
    return replace(case, files={}).with_file(name, text)
