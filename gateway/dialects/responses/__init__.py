"""OpenAI's /v1/responses, translated onto chat, whose running token counts make aborted requests exact.

Florin stores no answers: each request brings its whole conversation, and nothing of it reaches the memory
that an engine shares among its clients.

`request` turns a request into a chat; `reply` turns the chat's answer into a Response or a stream of its
events, with `items` and `envelope`.
"""
