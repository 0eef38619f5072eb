"""A stand-in for the Hugging Face Hub on loopback: creates repositories, takes commits, hands files out."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse


class Hub:
    """Repositories as {(type, name): {path: bytes}}, and what was asked for."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.url = ""

    def files(self, name: str, kind: str = "models") -> dict[str, bytes]:
        return self.repos[kind, name]

    def commit_of(self, key: tuple[str, str]) -> str:
        content = json.dumps({path: hashlib.sha1(data).hexdigest() for path, data in sorted(self.repos[key].items())})
        return hashlib.sha1(content.encode()).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that is there while the block runs."""
    hub = Hub()

    class Handler(_Handler):
        store = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    store: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _key(self, parts: list[str]) -> tuple[str, str]:
        return parts[1], "/".join(parts[2:4])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlparse(self.path).path.strip("/").split("/")
        self.store.asked.append(f"POST {self.path}")
        self.store.tokens.add(self.headers.get("Authorization", ""))
        if parts[:3] == ["api", "repos", "create"]:
            given = json.loads(body)
            name, kind = f"{given['organization']}/{given['name']}", f"{given.get('type', 'model')}s"
            self.store.repos.setdefault((kind, name), {".gitattributes": b""})
            self.store.private[name] = bool(given.get("private")) or given.get("visibility") == "private"
            self._answer({"url": f"{self.store.url}/{name}", "id": name})
        elif parts == ["api", "validate-yaml"]:  # of a card
            self._answer({"errors": [], "warnings": []})
        elif "preupload" in parts:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif "commit" in parts:
            self._commit(self._key(parts), body)
        else:
            self._answer({"error": "no such place"}, 404)

    def _commit(self, key: tuple[str, str], body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                assert value["encoding"] == "base64"
                self.store.repos[key][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                self.store.repos[key].pop(value["path"], None)
        commit = self.store.commit_of(key)
        self._answer({"commitOid": commit, "commitUrl": f"{self.store.url}/{key[1]}/commit/{commit}", "success": True})

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlparse(self.path).path.strip("/").split("/")]
        self.store.asked.append(f"{self.command} {self.path}")
        if "resolve" in parts:
            self._file(parts)
            return
        key = self._key(parts)
        if key not in self.store.repos:
            self._answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            return
        if "tree" in parts:
            files = self.store.repos[key]
            self._answer([{"type": "file", "path": p, "size": len(d), "oid": "0" * 40} for p, d in files.items()])
            return
        siblings = [{"rfilename": path} for path in self.store.repos[key]]
        about = {"id": key[1], "sha": self.store.commit_of(key), "siblings": siblings, "private": False, "tags": []}
        self._answer({**about, "downloads": 0, "likes": 0, "modelId": key[1]})

    do_HEAD = do_GET

    def _file(self, parts: list[str]) -> None:
        at = parts.index("resolve")
        kind = "datasets" if parts[0] == "datasets" else "models"
        key, path = (kind, "/".join(parts[at - 2 : at])), "/".join(parts[at + 2 :])
        if key not in self.store.repos:
            self._answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        elif path not in self.store.repos[key]:
            self._answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")
        else:
            data = self.store.repos[key][path]
            tag = f'"{hashlib.sha1(data).hexdigest()}"'
            self._answer(data, ETag=tag, X_Repo_Commit=self.store.commit_of(key))

    do_PUT = do_POST
