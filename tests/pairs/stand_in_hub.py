"""A stand-in for the Hugging Face hub on 127.0.0.1: repositories, revisions, ranges, gates, and dropped connections."""

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """`repositories` maps a repository id to its files; `requests` lists what was asked."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    drop_after: int | None = None  # close the next download's connection after so many bytes
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)

    def start(self) -> str:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = unquote(self.path.split("?")[0])
        self.hub.requests.append(f"{self.command} {path}")
        if path == "/":
            return self.send(200, b"hub", body)
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        repo = (info or file)[1] if info or file else ""
        if repo not in self.hub.repositories:
            return self.send(401, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        if repo in self.hub.gated:
            return self.send(403, b"{}", body, {"X-Error-Code": "GatedRepo"})
        revision = info[3] if info else file[2]
        if revision not in (None, "main", COMMIT):
            return self.send(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        files = self.hub.repositories[repo]
        if info:
            return self.send(200, json.dumps(_tree(files) if info[2] == "tree" else _info(repo, files)).encode(), body)
        if file[3] not in files:
            return self.send(404, b"{}", body, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        return self.send_file(files[file[3]], body)

    def send(self, status, content, body, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def send_file(self, content, body):
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if asked:
            self.hub.ranges.append(self.headers["Range"])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        part = content[start:]
        if not body or self.hub.drop_after is None:
            return self.send(206 if asked else 200, part, body, headers)
        self.send(206 if asked else 200, part, False, headers)
        self.wfile.write(part[: self.hub.drop_after])
        self.wfile.flush()
        self.hub.drop_after = None
        self.connection.close()
        self.close_connection = True


def _info(repo, files):
    return {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}


def _tree(files):
    return [
        {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        for name, content in files.items()
    ]
