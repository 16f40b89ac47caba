"""OpenAI's /v1/responses, translated onto chat, whose running token counts make aborted requests exact.

Florin stores no answers: each request brings its whole conversation, and nothing of it reaches the memory
that an engine shares among its clients.

`request` makes a chat of a request; `reply` makes a Response, or a stream of its events, of the chat's
answer, with `items` and `envelope`.
"""
