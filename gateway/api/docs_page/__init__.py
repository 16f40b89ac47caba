"""/docs: the API as a page to try it on, with FLORIN_API_DOCS. Its files are Florin's own: it works without a
network, and loads nothing from elsewhere."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Florin: the API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
<script src="/docs/swagger-ui-bundle.js" defer></script>
<script src="/docs/start.js" defer></script>
</head>
<body><div id="api"></div></body>
</html>
"""
_START: Final = """SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#api", deepLinking: true, docExpansion: "none", filter: true,
  validatorUrl: "none", syntaxHighlight: false,
});
"""
_SCRIPT, _STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"


@router.get("/docs", response_class=HTMLResponse)
async def page() -> str:
    return _PAGE


@router.get("/docs/start.js")
async def start() -> Response:
    return Response(_START, media_type=_SCRIPT)


@router.get("/docs/swagger-ui-bundle.js")
async def script(request: Request) -> Response:
    return _file(request, "swagger-ui-bundle.js.gz", _SCRIPT)


@router.get("/docs/swagger-ui.css")
async def style(request: Request) -> Response:
    return _file(request, "swagger-ui.css.gz", _STYLE)


def _file(request: Request, name: str, media: str) -> Response:
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers = {"content-encoding": "gzip", "vary": "accept-encoding"}
        return Response(_packed(name), headers=headers, media_type=media)
    return Response(gzip.decompress(_packed(name)), headers={"vary": "accept-encoding"}, media_type=media)


@cache  # two files
def _packed(name: str) -> bytes:
    return (files(__package__) / name).read_bytes()
