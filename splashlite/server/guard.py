"""Who may talk to the server, and how much: checked before anything of a request's body is looked at.

A web page that a person visits can reach a local server. Its browser says so in Origin, and a page that made
its own name point here (DNS rebinding) says its own name in Host: both are checked on every request.
"""

import hmac
import ipaddress
import re
from urllib.parse import parse_qsl

from starlette.responses import Response

from splashlite.server import body, problems
from splashlite.server.problems import Problem, unsupported

BODY_BYTES = 16 * 2**20
BODIES_BYTES = 64 * 2**20  # of all requests together
PUBLIC = ("/health", "/ready")
_QUERY = (
    "beta",
    "limit",
    "after_id",
    "before_id",
)  # Anthropic's clients send them; there is one model and no beta
_BODY_METHODS = ("POST", "PUT", "PATCH")


class Guard:
    """ASGI middleware. `hosts` and `origins` are what is allowed beside loopback and IP literals, `key` the
    API key or None.

    Parsed bodies are in scope["parsed"]. `seen(path, status)` hears of every answer.
    """

    def __init__(self, app, *, hosts=(), origins=(), key: str | None = None, seen=lambda path, status: None):
        self._app, self._key, self._seen = app, key.encode() if key else None, seen
        self._hosts = {"localhost", *(_bare(host) for host in hosts)}
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._held = 0

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        headers, path = _Headers(scope["headers"]), scope["path"]
        extra = dict(_ALWAYS)
        answered = _Answer(send, extra, lambda status: self._seen(path, status))
        try:
            origin = self._check(scope, headers)
            if origin is not None:
                extra |= {"access-control-allow-origin": origin, "vary": "Origin"}
            if scope["method"] == "OPTIONS" and headers.one("access-control-request-method") is not None:
                return await Response(status_code=204, headers=_PREFLIGHT)(scope, receive, answered)
            if not _public(path):
                self._check_key(headers)
            held = 0

            def hold(size: int) -> None:
                nonlocal held
                held += size
                self._held += size
                if self._held > BODIES_BYTES:
                    words = "the requests of this moment are too large together: try again"
                    raise Problem(503, words, code="overloaded")

            try:
                receive = await self._with_body(scope, headers, receive, hold)
                await self._app(scope, receive, answered)
            finally:
                self._held -= held
        except Problem as problem:
            await problems.response(problem, path)(scope, receive, answered)
        except Exception as error:  # noqa: BLE001  (the log hears of it, the client gets a 500)
            problems.record(error)
            if not answered.started:
                await problems.response(problems.of(error), path)(scope, receive, answered)

    def _check(self, scope, headers: "_Headers") -> str | None:
        """The allowed foreign Origin, None where there is none. Raises Problem 400 or 403."""
        if not scope["raw_path"].startswith(b"/"):
            raise Problem(400, "the request's target must be a path: talk to this server without a proxy")
        for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
            if scope["path"].startswith("/v1/") and name not in _QUERY:
                raise unsupported(f"the query parameter {_shown(name)}", "leave it out")
        host = headers.one("host")
        if host is None:
            raise Problem(400, "the request has no Host header: send one")
        if not self._is_allowed(host):
            fix = f"start the server with --allowed-host {_shown(_bare(host))}"
            raise Problem(403, f"the host {_shown(host)} is not allowed: {fix}")
        origin = headers.one("origin")
        if origin is None:
            return None
        origin = origin.lower()
        if origin in self._origins:
            return origin
        if origin == f"{scope['scheme']}://{host.lower()}":
            return None
        fix = f"start the server with --allowed-origin {_shown(origin)}"
        raise Problem(403, f"the origin {_shown(origin)} is not allowed: {fix}")

    def _is_allowed(self, host: str) -> bool:
        if re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]+)(:\d{1,5})?", host) is None:
            return False
        bare = _bare(host)
        if bare in self._hosts:
            return True
        try:
            ipaddress.ip_address(bare.strip("[]"))
        except ValueError:
            return False
        return True

    def _check_key(self, headers: "_Headers") -> None:
        """Both ways of sending the key are compared, in constant time; when both are used, both must
        match."""
        if self._key is None:
            return
        bearer, plain = headers.one("authorization"), headers.one("x-api-key")
        given = [plain] if plain is not None else []
        if bearer is not None:
            scheme, _, value = bearer.partition(" ")
            given.append(value.strip() if scheme.lower() == "bearer" else "")
        matches = [hmac.compare_digest(each.encode("latin-1", "replace"), self._key) for each in given]
        if not matches or not all(matches):
            raise Problem(
                401,
                "the API key is missing or wrong: send it as Authorization: Bearer KEY",
                code="invalid_api_key",
            )

    async def _with_body(self, scope, headers: "_Headers", receive, hold):
        """A `receive` that gives the checked body, and then says when the client goes away."""
        length = headers.one("content-length")
        has_body = headers.one("transfer-encoding") is not None or (length or "0") != "0"
        if scope["method"] not in _BODY_METHODS:
            if has_body:
                raise Problem(413, f"a {scope['method']} request carries no body here: leave it out")
            return receive
        if headers.one("content-encoding") is not None:
            raise Problem(415, "compressed bodies are not taken: send the JSON as it is")
        media = (headers.one("content-type") or "").split(";")
        if media[0].strip().lower() != "application/json":
            raise Problem(415, "the body must be JSON: send Content-Type: application/json")
        raw = await body.read(receive, int(length) if length else None, BODY_BYTES, hold)
        scope["parsed"] = body.parse(raw)
        given = False

        async def replay():
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": raw, "more_body": False}

        return replay


class _Answer:
    """A `send` that adds headers and tells the status."""

    def __init__(self, send, extra: dict[str, str], seen):
        self._send, self._extra, self._seen, self.started = send, extra, seen, False

    async def __call__(self, message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            added = [
                (name.encode(), value.encode("latin-1", "replace")) for name, value in self._extra.items()
            ]
            message = message | {"headers": [*message.get("headers", ()), *added]}
            self._seen(message["status"])
        await self._send(message)


class _Headers:
    """Headers that may stand once only: twice is an error, since two readers may take different ones."""

    def __init__(self, pairs):
        self._pairs = pairs

    def one(self, name: str) -> str | None:
        found = [value for key, value in self._pairs if key == name.encode()]
        if len(found) > 1:
            raise Problem(400, f"the request has more than one {name} header: send one")
        return found[0].decode("latin-1").strip() if found else None


_ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_PREFLIGHT = {
    "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
    "access-control-allow-headers": "authorization, content-type, x-api-key, anthropic-version, anthropic-beta",
    "access-control-max-age": "600",
}


def _public(path: str) -> bool:
    return path in PUBLIC or path == "/" or path.startswith("/page/")


def _bare(host: str) -> str:
    """A host without its port, in lower case, without the dot that may end a name."""
    name = (
        host.rpartition(":")[0]
        if re.search(r":\d+$", host) and not host.endswith("]") and host.count(":") == 1 or "]:" in host
        else host
    )
    return name.lower().removesuffix(".")


def _shown(text: str) -> str:
    """What a client sent, safe to show."""
    return repr(text[:100])[1:-1]
