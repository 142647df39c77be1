"""A server that answers what an agent's launcher asks, with as many seconds of loading as it is told.

Run as a program it stands in for splashlite/agent/child.py.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "incoai/Qwen3.8-27B-DFlash2"


class Standin:
    """`state` is what /health says, `ready_at` the time from which /ready is true; `seen` holds (path, authorization)."""

    def __init__(
        self,
        *,
        port=0,
        model=MODEL,
        context=100_000,
        trained=None,
        key=None,
        loading_s=0.0,
        state="ok",
        names=(MODEL, "qwen3.8-27b"),
    ):
        self.model, self.context, self.key, self.state, self.names = model, context, key, state, names
        self.trained = {} if trained is None else {"trained_context_length": trained}
        self.ready_at, self.seen = time.monotonic() + loading_s, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.seen.append((self.path, self.headers.get("authorization")))
                status, answer = outer.answer(self.path, self.headers.get("authorization"))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict]:
        if path == "/health":
            return (200 if self.state == "ok" else 503), {"status": self.state, "step_age_s": 0.1}
        if path == "/ready":
            return (200, {}) if time.monotonic() >= self.ready_at else (503, {})
        if self.key and authorization != f"Bearer {self.key}":
            return 401, {}
        if path == "/v1/models":
            return 200, {"data": [{"id": self.model, "context_length": self.context} | self.trained]}
        return (200 if path.removeprefix("/v1/models/") in self.names else 404), {}

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def main(arguments: list[str]) -> None:
    from splashlite.agent.child import end_with_parent

    threading.Thread(target=end_with_parent, daemon=True).start()
    print("target: 10 of 20 MB", flush=True)
    if "broken" in arguments:
        sys.exit("splashlite: broken is no known pair: did you mean another?")
    port = int(arguments[arguments.index("--port") + 1])
    Standin(port=port, key=os.environ.get("SPLASHLITE_API_KEY"), loading_s=0.3)
    print(f"pid {os.getpid()}", flush=True)
    if "dying" in arguments:
        time.sleep(0.8)
        print("out of memory", flush=True)
        os._exit(3)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
