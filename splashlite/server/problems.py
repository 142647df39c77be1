"""What a request can be refused with, in the shape that each API's clients expect."""

import logging
import traceback

from starlette.responses import JSONResponse

from splashlite.errors import SplashliteError, UsageError

log = logging.getLogger("splashlite.server")

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    500: "api_error",
    503: "overloaded_error",
}


class Problem(Exception):
    """An answer that is not a reply. `param` is the field at fault, `retry_after` is in seconds (503
    only)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int = 1,
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.retry_after = (
            status,
            message,
            code,
            param,
            retry_after,
        )
        self.anthropic = message  # the same in the words that Anthropic's clients look for

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.status == 503:
            headers["retry-after"] = str(self.retry_after)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (401, 403, 408, 413, 415):  # the body may not have been read
            headers["connection"] = "close"
        return headers


def of(error: BaseException) -> Problem:
    """An engine's error as a problem. What is not one of splashlite's own sentences is a bug and stays in
    the log."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, UsageError):
        return Problem(400, str(error))
    if isinstance(error, SplashliteError):
        return Problem(500, str(error), code="engine_failed")
    return Problem(
        500, f"the engine failed with {type(error).__name__}: see the server's log", code="engine_failed"
    )


def unsupported(name: str, why: str) -> Problem:
    return Problem(400, f"{name} is not supported: {why}", code="unsupported_parameter", param=name)


def invalid(name: str, why: str) -> Problem:
    return Problem(400, f"{name}: {why}", code="invalid_value", param=name)


def openai_error(problem: Problem) -> dict:
    kind = "server_error" if problem.status >= 500 else "invalid_request_error"
    return {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}


def anthropic_error(problem: Problem) -> dict:
    return {"type": _ANTHROPIC.get(problem.status, "api_error"), "message": problem.anthropic}


def body(problem: Problem, path: str) -> dict:
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": anthropic_error(problem)}
    return {"error": openai_error(problem)}


def response(problem: Problem, path: str) -> JSONResponse:
    return JSONResponse(body(problem, path), problem.status, problem.headers)


def record(error: BaseException) -> None:
    """What failed and where, without the message: it may quote a prompt."""
    where = "".join(traceback.format_tb(error.__traceback__)[-6:])
    log.error("a request failed with %s\n%s", type(error).__name__, where.rstrip())
