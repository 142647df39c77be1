"""All endpoints on one FastAPI application."""

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from splashlite.server import catalogue, chat, completions, messages, page, problems, responses, validation
from splashlite.server.guard import Guard
from splashlite.server.problems import Problem
from splashlite.server.serving import Serving
from splashlite.server.worker import Worker

log = logging.getLogger("splashlite.server")


class _Parsed(Request):
    """A request whose body the guard has parsed, by stricter rules than the standard library's."""

    async def json(self):
        return self.scope["parsed"]


class _Route(APIRoute):
    def get_route_handler(self):
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_Parsed(request.scope, request.receive))

        return handle


def build(worker: Worker, *, hosts=(), origins=(), key: str | None = None):
    """The ASGI application over a worker."""
    api = FastAPI(title="splashlite", docs_url=None, redoc_url=None, openapi_url=None)
    api.router.route_class = _Route
    serving = Serving(worker)

    @api.post("/v1/chat/completions")
    async def _(body: chat.ChatRequest):
        return await chat.respond(serving, body)

    @api.post("/v1/completions")
    async def _(body: completions.CompletionRequest):
        return await completions.respond(serving, body)

    responses.routes(api, serving)
    messages.routes(api, serving)
    catalogue.routes(api, serving)
    page.routes(api)

    @api.exception_handler(Problem)
    async def _(request: Request, problem: Problem):
        return problems.response(problem, request.url.path)

    @api.exception_handler(problems.SplashliteError)
    async def _(request: Request, error):
        return problems.response(problems.of(error), request.url.path)

    @api.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError):
        return problems.response(validation.refusal(error.errors(), error.body), request.url.path)

    @api.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException):
        method, path = request.method, request.url.path[:100]
        words = {404: f"there is nothing at {path!r}", 405: f"{path!r} does not take {method}"}
        problem = Problem(
            error.status_code,
            f"{words.get(error.status_code, error.detail)}: see docs/api.md",
            code="not_found",
        )
        return problems.response(problem, request.url.path)

    known = {route.path for route in api.routes}

    def seen(path: str, status: int) -> None:
        if path not in known:
            path = path.rpartition("/")[0] if status < 400 else "other"
        serving.metrics.request(path, status)

    return Guard(api, hosts=hosts, origins=origins, key=key, seen=seen)
