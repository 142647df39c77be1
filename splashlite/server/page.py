"""The chat page and its files, under a policy that lets nothing else run."""

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response

_FOLDER = Path(__file__).parent / "page"
_FILES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "chats.js": "text/javascript; charset=utf-8",
    "markdown.js": "text/javascript; charset=utf-8",
    "reply.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "x-frame-options": "DENY",
}


def routes(api: FastAPI) -> None:
    files = {name: (_FOLDER / name).read_bytes() for name in _FILES}

    def route(path: str, name: str) -> None:
        @api.get(path, include_in_schema=False)
        async def file():
            return Response(files[name], media_type=_FILES[name], headers=_HEADERS)

    route("/", "index.html")
    for name in _FILES:
        route(f"/page/{name}", name)
