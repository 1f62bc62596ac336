"""A mirror of small datasets on the loopback interface: the few Hub endpoints that `datasets.load_dataset` asks for."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubMirror:
    """Serves datasets (id -> path in the repository -> content); use it in a `with` block.

    `requests` are (method, path) in the order they came.
    """

    def __init__(self, datasets: dict[str, dict[str, bytes]]) -> None:
        self.datasets = datasets
        self.requests: list[tuple[str, str]] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                mirror.requests.append((self.command, self.path))
                status, data, headers = mirror.respond(unquote(urlsplit(self.path).path), body)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), "X-Repo-Commit": COMMIT, **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_HEAD = do_POST = _answer

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubMirror":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def respond(self, path: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Return (status, body, headers) for a request."""
        for dataset_id, files in self.datasets.items():
            api, resolve = f"/api/datasets/{dataset_id}", f"/datasets/{dataset_id}/resolve/"
            if path.startswith(resolve):
                content = files.get(path.removeprefix(resolve).partition("/")[2])
                if content is not None:
                    return 200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
                return 404, b"", {"X-Error-Code": "EntryNotFound"}
            if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
                return _json({"id": dataset_id, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})
            if path.startswith(f"{api}/tree/"):
                return _json([_entry(name, content) for name, content in files.items()])
            if path.startswith(f"{api}/paths-info/"):
                wanted = json.loads(body)["paths"]
                return _json([_entry(name, content) for name, content in files.items() if name in wanted])
        return 404, b"", {"X-Error-Code": "RepoNotFound"}


def _entry(name: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


def _json(data: object) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(data).encode(), {"Content-Type": "application/json"}
