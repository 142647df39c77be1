"""The server that is there: found by its port, waited for, asked what it serves. No MLX here: this only speaks HTTP."""

import http.client
import json
import os
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from splashlite.errors import SplashliteError, UsageError

HOST = "127.0.0.1"
NO_KEY = "splashlite"  # what clients send to a server that asks for no key: they refuse to send nothing
ANSWER_S = 5


class Served(NamedTuple):
    """A server that is ready: its root `url`, the `model` it answers as, `context` in tokens, its `key` or None, and the
    longest context that the model was `trained` for, None where that is not known."""

    url: str
    model: str
    context: int
    key: str | None
    trained: int | None = None

    @property
    def token(self) -> str:
        return self.key or NO_KEY


def key_from_environment() -> str | None:
    """The key that `splashlite serve` asks for, from the variable that it reads."""
    return os.environ.get("SPLASHLITE_API_KEY") or None


def find(port: int, waiting: Callable[[], None] = lambda: None) -> Served | None:
    """The splashlite server on `port` of this machine, ready; None where there is none.

    `waiting()` is called again and again while it loads. Raises SplashliteError when it does not get ready or asks for
    another key.
    """
    status, health = _get(port, "/health")
    if "step_age_s" not in health:
        return None
    if status != 200:
        raise SplashliteError(
            f"the server on port {port} is {health.get('status')}: end it and start it again"
        )
    while (status := _get(port, "/ready")[0]) != 200:
        if status is None or _get(port, "/health")[0] != 200:
            raise SplashliteError(
                f"the server on port {port} ended before its model was loaded: see what it said last"
            )
        waiting()
        time.sleep(0.2)
    return describe(port)


def describe(port: int) -> Served:
    """What the ready server on `port` serves. Raises SplashliteError when it asks for another key."""
    key = key_from_environment()
    status, models = _get(port, "/v1/models", key)
    if status == 401:
        asked = "another key than the one in SPLASHLITE_API_KEY" if key else "a key"
        raise SplashliteError(
            f"the server on port {port} asks for {asked}: set SPLASHLITE_API_KEY to its key"
        )
    try:
        card = models["data"][0]
        trained = card.get("trained_context_length")
        return Served(f"http://{HOST}:{port}", card["id"], card["context_length"], key, trained)
    except (KeyError, IndexError, TypeError):
        said = f"the server on port {port} does not say what it serves"
        raise SplashliteError(f"{said}: end it and start it again") from None


def require(served: Served, pair: str) -> None:
    """Raises UsageError when a server that runs already serves something else than `pair`."""
    port = int(served.url.rpartition(":")[2])
    if _get(port, f"/v1/models/{quote(pair)}", served.key)[0] != 200:
        said = f"the server on port {port} serves {served.model}, not {pair}"
        raise UsageError(f"{said}: leave {pair} out, or end that server first")


def is_ready(port: int) -> bool:
    return _get(port, "/ready")[0] == 200


def _get(port: int, path: str, key: str | None = None) -> tuple[int | None, dict]:
    """The status and the JSON object that a GET answers with: (None, {}) where nothing answers, {} where it is no object.

    A plain connection: proxies, which urllib would take from the environment, have no business on this machine.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        status, body = answer.status, answer.read(2**20)
    except (OSError, http.client.HTTPException):
        return None, {}
    finally:
        connection.close()
    try:
        parsed = json.loads(body)
    except ValueError:
        return status, {}
    return status, parsed if isinstance(parsed, dict) else {}
