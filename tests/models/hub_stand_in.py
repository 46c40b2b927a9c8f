"""A local stand-in of the Hub: the few addresses that a download touches, with faults on demand."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

COMMIT = hashlib.sha1(b"commit").hexdigest()


@dataclass
class Hub:
    """One repository.

    files: by path. token: asked of every call when set. cut_after: the first transfer of the named file
    breaks off after so many bytes. stall_after: the same, but it stands still until the other end is gone.
    log: (method, path, Range header) of every call. sent: bytes of each file in all.
    """

    repo: str
    files: Mapping[str, bytes]
    token: str | None = None
    cut_after: dict[str, int] = field(default_factory=dict)
    stall_after: dict[str, int] = field(default_factory=dict)
    log: list[tuple[str, str, str | None]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    address: str = ""

    def fetched(self) -> set[str]:
        """Paths of the files that were transferred."""
        return {
            path.rsplit("/", 1)[-1] for method, path, _ in self.log if method == "GET" and "/resolve/" in path
        }


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serve the hub on a free local port while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer("HEAD")

        def do_GET(self) -> None:
            self._answer("GET")

        def log_message(self, *args: object) -> None:
            pass

        def _answer(self, method: str) -> None:
            path = unquote(urlparse(self.path).path)
            hub.log.append((method, path, self.headers.get("Range")))
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                return self._send(
                    401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}
                )
            if path.startswith(f"/api/models/{hub.repo}/revision/"):
                if path.rsplit("/", 1)[-1] not in ("main", "v1", COMMIT):
                    return self._send(404, {"X-Error-Code": "RevisionNotFound"})
                return self._json(
                    {"id": hub.repo, "sha": COMMIT, "siblings": [{"rfilename": n} for n in hub.files]}
                )
            if path == f"/api/models/{hub.repo}":
                return self._json(
                    {"id": hub.repo, "sha": COMMIT, "siblings": [{"rfilename": n} for n in hub.files]}
                )
            if path.startswith(f"/api/models/{hub.repo}/tree/"):
                return self._json(
                    [
                        {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                        for name, data in hub.files.items()
                    ]
                )
            prefix = f"/{hub.repo}/resolve/"
            name = path.removeprefix(prefix).split("/", 1)[-1]
            if path.startswith(prefix) and name in hub.files:
                return self._file(method, name, hub.files[name])
            return self._send(404, {"X-Error-Code": "RepoNotFound"})

        def _json(self, value: object) -> None:
            self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

        def _file(self, method: str, name: str, data: bytes) -> None:
            wanted = self.headers.get("Range")
            start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
            headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            body = data[start:]
            stall = hub.stall_after.pop(name, None) if method == "GET" else None
            cut = hub.cut_after.pop(name, stall) if method == "GET" else 0
            hub.sent[name] = hub.sent.get(name, 0) + len(body[:cut])
            self._send(206 if start else 200, headers, body, method, cut)
            if stall is not None:
                self.connection.settimeout(30)
                self.connection.recv(1)  # nothing comes: it returns when the other end closes

        def _send(
            self,
            status: int,
            headers: Mapping[str, str],
            body: bytes = b"",
            method: str = "GET",
            cut: int | None = None,
        ) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            if method == "GET":
                self.wfile.write(body if cut is None else body[:cut])
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
