"""What to tell a client that asks for a path which does not exist. Most have a wrong base_url. Pure."""

from __future__ import annotations

from typing import Final

from gateway.dialects.endpoints import ENDPOINTS

_VERSION: Final = "/v1"
_LISTS: Final = ("/v1/models", "/v1/files", "/v1/batches")
_ROUTES: Final = {
    route.removeprefix(_VERSION): route
    for route in sorted((*ENDPOINTS, *_LISTS), key=len, reverse=True)
    if route.startswith(f"{_VERSION}/")
}
"""What clients add to a base_url that ends in /v1 → the route. The longest come first."""
_OTHERWISE: Final = " (An OpenAI client's base_url must end in /v1.)"


def nothing_at(path: str) -> str:
    """The message of the 404, with what is wrong with the client's base_url if that can be told."""
    return f"There is no {path[:200]} here.{_hint(path[:1000])}"


def _hint(path: str) -> str:
    added = next((added for added in _ROUTES if path.rstrip("/").endswith(added)), None)
    if added is None:
        return "" if path.startswith(f"{_VERSION}/") else _OTHERWISE
    route = _ROUTES[added]
    return f" Did you mean {route}? {_correction(path.rstrip('/'), added, route)}"


def _correction(path: str, added: str, route: str) -> str:
    """What to change in a base_url with which a client that meant `route` asks for `path`."""
    base = path.removesuffix(added)
    if not base:
        return f"Add {_VERSION} to the client's base_url."
    surplus = path.removesuffix(route) if path.endswith(route) else base.removeprefix(_VERSION)
    if surplus == base:
        return f"The client's base_url must end in {_VERSION}."
    if surplus == "/":
        return "Leave out the slash at the end of the client's base_url."
    return f"Leave {surplus[:200]} out of the client's base_url."
