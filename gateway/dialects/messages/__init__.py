"""Anthropic's Messages API (`POST /v1/messages`), translated onto chat.

`endpoint` puts it together. `request`, `content` and `tools` turn a request into a chat; `answer` and
`stream` turn a chat's answer into what that API's clients read; `errors` has its errors and response headers,
`models` its list of models.
"""
