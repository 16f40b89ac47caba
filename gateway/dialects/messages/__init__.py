"""Anthropic's Messages API (`POST /v1/messages`), translated onto chat.

`endpoint` puts it together. `request`, `content` and `tools` make a chat of a request; `answer` and `stream`
make of a chat's answer what that API's clients read; `errors` has its errors and response headers, `models`
its list of models.
"""
