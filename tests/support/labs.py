"""A small trained model as the lab opens it, and a lab that serves it."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import torch

from headwise.lab.opening import Opened
from headwise.testing import toy_model


def opened_toy(folder: Any = None, tasks: int = 3) -> Opened:
    """A random model: its answers are near the middle, so that heads flip them."""
    model = toy_model(tasks)
    draw = torch.Generator().manual_seed(0)
    scores = {name: torch.rand(model.attention.shape, generator=draw).tolist() for name in model.tasks}
    source = "model"
    if folder is not None:
        source = str(model.save_pretrained(folder / "model"))
    return Opened(model.eval(), source, "toy", scores, {"previous token": [(0, 1)]}, folder=folder)


class Lab:
    """A lab that serves on a free port, and a way to ask it."""

    token = "t0ken"

    def __init__(self, opened: Opened):
        import uvicorn

        from headwise.lab import server

        self.socket = server.bound("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.app = server.application(opened, self.token, server.hosts_of("127.0.0.1", self.port))
        config = uvicorn.Config(self.app, **server.settings())
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def send(self, path: str = "", body: Any = None, *, root: str = "", **headers: str) -> tuple[int, bytes, Any]:
        """Status, body and headers of an answer."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {} if data is None else {"Content-Type": "application/json"}
        given = kind | {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request((root or self.address) + path, data, given)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), error.headers

    def ask(self, path: str, **body: Any) -> Any:
        status, text, _ = self.send(path, {"client": "test", **body})
        assert status == 200, text
        return json.loads(text)

    def lines(self, path: str, **body: Any) -> list[Any]:
        status, text, _ = self.send(path, {"client": "test", **body})
        assert status == 200, text
        return [json.loads(line) for line in text.splitlines()]

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=20)
        self.app.state.desk.close()
