import pytest

from gateway.metering.prompt_estimate import prompt_tokens


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "x" * 40}, 10),
        ({"prompt": ""}, 1),
        ({"prompt": ["x" * 40, "x" * 8]}, 12),
        ({"prompt": [5, 6, 7]}, 3),
        ({"prompt": [[5, 6, 7], [8]]}, 4),
        ({"messages": [{"role": "user", "content": "x" * 40}]}, 14),
        ({"messages": [{"role": "system", "content": "x" * 40}, {"role": "user", "content": "x" * 8}]}, 20),
        ({"messages": [{"role": "assistant"}]}, 4),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "x" * 8}, {"type": "image"}]}
                ]
            },
            6,
        ),
        ({"messages": [{"role": "user", "content": {"odd": 1}}]}, 4),
        ({"messages": [{"role": "user", "content": ["odd", {"text": 5}]}]}, 4),
    ],
)
def test_a_prompt_counts_by_its_length(body, tokens):
    assert prompt_tokens(body) == tokens
