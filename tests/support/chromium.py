"""A headless Chromium for tests, driven over the plain HTTP of the WebDriver standard; no package needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ENTER, ESCAPE, UP, DOWN, LEFT, RIGHT = "\ue007", "\ue00c", "\ue013", "\ue015", "\ue012", "\ue014"
BROWSER, DRIVER = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")


class Chromium:
    """One browser window; every request and every console message is kept."""

    def __init__(self, profile: Path, width: int = 1440, height: int = 1000):
        port = _free_port()
        environment = {**os.environ, "HOME": str(profile)}
        self.process = subprocess.Popen(
            [str(DRIVER), f"--port={port}"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.root = f"http://127.0.0.1:{port}"
        self._await_driver()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        flags += [
            f"--user-data-dir={profile / 'profile'}",
            f"--window-size={width},{height}",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": BROWSER, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self.root += (
            "/session/" + self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        )

    def _await_driver(self) -> None:
        for _ in range(100):
            try:
                self._call("GET", "/status")
                return
            except urllib.error.URLError:
                time.sleep(0.1)
        raise RuntimeError("chromedriver does not answer")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.root + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(json.load(error)["value"]["message"]) from None

    def close(self) -> None:
        self._call("DELETE", "")
        self.process.terminate()
        self.process.wait(timeout=20)

    def open(self, page: Path | str, fragment: str = "") -> None:
        """Open a file, or an address."""
        self._call("POST", "/url", {"url": "about:blank"})
        self.console(), self.requests()
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self._call("POST", "/url", {"url": address + fragment})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def keys(self, *keys: str) -> None:
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def point(self, selector: str, click: bool = False) -> None:
        """Move the mouse over an element, and perhaps press."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        box = self.run(
            "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [b.left + b.width / 2, b.top + b.height / 2].map(Math.round)",
            selector,
        )
        steps: list[dict[str, Any]] = [{"type": "pointerMove", "x": box[0], "y": box[1], "duration": 0}]
        if click:
            steps += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})

    def console(self) -> list[str]:
        """Messages of the console (errors of scripts and of the security policy among them) since last asked."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Every address asked for since last asked."""
        entries = self._call("POST", "/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def size(self, width: int, height: int) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, scheme: str, media: str = "") -> None:
        """Ask for light or dark, on screen or in print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", media=media, features=features)

    def look(self, path: Path, *, dark: bool = False, vision: str = "none") -> Path:
        """A screenshot of what is in the window, maybe as readers with another colour vision see it."""
        self.prefer("dark" if dark else "light")
        self.devtools("Emulation.setEmulatedVisionDeficiency", type=vision)
        time.sleep(0.3)
        path.write_bytes(base64.b64decode(self.devtools("Page.captureScreenshot", format="png")["data"]))
        self.devtools("Emulation.setEmulatedVisionDeficiency", type="none")
        return path


def opened(profile: Path) -> Iterator[Chromium]:
    """A window for a fixture; where there is no browser, its tests are skipped."""
    if not (BROWSER and DRIVER):
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    window = Chromium(profile)
    yield window
    window.close()


def axe(window: Chromium) -> list[str]:
    """What axe-core finds serious or critical in the page; HEADWISE_AXE names its axe.min.js (npm install axe-core)."""
    places = (os.environ.get("HEADWISE_AXE", ""), "node_modules/axe-core/axe.min.js")
    source = next((Path(place) for place in places if place and Path(place).is_file()), None)
    if source is None:
        pytest.skip("needs axe-core: npm install axe-core, or HEADWISE_AXE=.../axe.min.js")
    window.run(source.read_text() + "\nwindow.axe = axe;")
    window._call("POST", "/timeouts", {"script": 60_000})
    found = window._call(
        "POST",
        "/execute/async",
        {"script": "const done = arguments[0]; axe.run().then((r) => done(r.violations))", "args": []},
    )
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    return [f"{each['id']}: {[node['target'] for node in each['nodes']][:4]}" for each in serious]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
