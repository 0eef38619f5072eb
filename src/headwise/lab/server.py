"""The server of the lab: loopback only, a token in the address, fixed routes.

A request is refused before it is read unless it names this host, comes from this page, holds the token, and is small.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
import socket
import sys
import threading
import traceback
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from headwise.errors import HeadwiseError, missing_extra
from headwise.io.files import finite
from headwise.io.system import Terminated
from headwise.lab import page
from headwise.lab.opening import Opened
from headwise.lab.requests import Desk
from headwise.lab.worker import Busy, Late, Replaced
from headwise.reporting.heads import render_atlas
from headwise.reporting.page import render

PORT = 8642
BODY = 256_000  # bytes: gates of 80 x 64 heads and two texts
SLOW = 10.0  # seconds within which a request must arrive
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
STATUS = {Replaced: 409, Busy: 503, Late: 504}


class Refused(HeadwiseError):
    """A rejected request with its HTTP status."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


def application(opened: Opened, token: str, hosts: Callable[[str], bool]) -> Any:
    """The ASGI application; ``hosts`` lists the accepted Host headers."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise missing_extra("starlette", "lab", "the lab") from None
    desk = Desk(opened)
    guard = _Guard(token, hosts)

    def route(path: str, answer: Callable[[Any], Any], method: str = "GET") -> Any:
        async def handle(request: Any) -> Any:
            try:
                await guard.check(request)
                return await answer(request)
            except Exception as error:
                return _failed(error)

        return Route("/{token}/" + path, handle, methods=[method])

    routes = [route("", _page), route("lab.css", _style), route("lab.js", _script)]
    routes += [route("about.json", lambda request: _plain(desk.about))]
    routes += [route("report", lambda request: _report(opened))] if opened.study else []
    routes += [route("atlas", lambda request: _atlas(opened))] if opened.atlas else []
    routes += [route(name, _asked(desk, name), "POST") for name in desk.names]
    app = Starlette(routes=[*routes, Route("/{rest:path}", _nothing, methods=["GET", "HEAD", "POST"])])
    app.state.desk = desk
    return app


class _Guard:
    """Reject requests without the right host, origin, token or size before they are read."""

    def __init__(self, token: str, hosts: Callable[[str], bool]):
        self.token, self.hosts = token, hosts

    async def check(self, request: Any) -> None:
        host = request.headers.get("host", "")
        if not self.hosts(host):
            raise Refused(403, f"the host {host[:80]!r} is not this server")
        if not secrets.compare_digest(request.path_params["token"].encode(), self.token.encode()):
            raise Refused(403, "open the address that headwise lab printed: it holds a token")
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
        if (origin or f"http://{host}") not in (f"http://{host}", f"https://{host}"):
            raise Refused(403, "a request from another page")
        if request.method == "POST" and site in (
            "cross-site",
            "same-site",
        ):  # following a link to the page itself is fine
            raise Refused(403, "a request from another page")
        if request.method == "POST" and request.headers.get("content-type", "").split(";")[0] != "application/json":
            raise Refused(415, "expected application/json")


async def body_of(request: Any) -> dict[str, Any]:
    """A request's JSON: a small object that arrived in time."""
    large = Refused(413, f"a request of more than {BODY} bytes")
    if int(request.headers.get("content-length") or 0) > BODY:
        raise large

    async def read() -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > BODY:
                raise large
        return b"".join(parts)

    try:
        text = await asyncio.wait_for(read(), SLOW)
    except TimeoutError:
        raise Refused(408, f"a request that took more than {SLOW:g} seconds to arrive") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused(400, "expected JSON") from None
    if not isinstance(data, dict):
        raise Refused(400, "expected a JSON object")
    return data


def _asked(desk: Desk, name: str) -> Callable[[Any], Any]:
    async def answer(request: Any) -> Any:
        data = await body_of(request)
        return await (_streamed(desk, name, data) if name in desk.streams else _plain(await desk.ask(name, data)))

    return answer


async def _streamed(desk: Desk, name: str, data: dict[str, Any]) -> Any:
    """Stream one line of JSON per result; a page that disconnects stops the work."""
    from starlette.responses import StreamingResponse

    results = desk.stream(name, data)

    async def lines() -> AsyncIterator[str]:
        try:
            async for value in results:
                yield json.dumps(finite(value), ensure_ascii=False) + "\n"
        except Exception as error:
            yield json.dumps({"error": _message(error)}) + "\n"
        finally:
            await results.aclose()  # type: ignore[attr-defined]

    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=HEADERS)


async def _plain(value: Any) -> Any:
    from starlette.responses import Response

    text = json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"))
    return Response(text, media_type="application/json", headers=HEADERS)


async def _page(request: Any) -> Any:
    return _text(page.html(), "text/html", {"Content-Security-Policy": page.POLICY})


async def _style(request: Any) -> Any:
    return _text(page.style(), "text/css")


async def _script(request: Any) -> Any:
    return _text(page.script(), "text/javascript")


async def _report(opened: Opened) -> Any:
    """The study's page under its own content security policy."""
    return _framed(render([opened.study or {}], lab="./", atlas="atlas" if opened.atlas else ""))


async def _atlas(opened: Opened) -> Any:
    return _framed(render_atlas(opened.atlas or {}))


def _framed(text: str) -> Any:
    return _text(text, "text/html", {"Content-Security-Policy": "frame-ancestors 'none'"})


async def _nothing(request: Any) -> Any:
    return _text("nothing here", "text/plain", status=404)


def _text(text: str, kind: str, more: dict[str, str] | None = None, status: int = 200) -> Any:
    from starlette.responses import Response

    return Response(text, status, media_type=kind, headers={**HEADERS, **(more or {})})


def _failed(error: Exception) -> Any:
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse

    if isinstance(error, ClientDisconnect):
        return JSONResponse({}, 400)
    status = getattr(error, "status", None) or STATUS.get(type(error), 422 if isinstance(error, HeadwiseError) else 500)
    return JSONResponse({"error": _message(error)}, status, headers=HEADERS)


def _message(error: Exception) -> str:
    """The message for the page; unexpected errors are printed where the lab runs."""
    if isinstance(error, HeadwiseError):
        return str(error)
    traceback.print_exception(error, file=sys.stderr)
    return f"the lab failed on this ({type(error).__name__}); see its terminal for the traceback"


# -- the process


def hosts_of(host: str, port: int) -> Callable[[str], bool]:
    """The accepted Host headers; other names that resolve here are rejected (DNS rebinding)."""
    names = {*LOOPBACK, host} if is_loopback(host) else {*LOOPBACK, host, socket.gethostname()}

    def known(header: str) -> bool:
        name, _, tail = header.rpartition(":") if header.count(":") == 1 or "]:" in header else (header, "", "")
        name = (name or header).strip("[]").lower()
        if tail and tail != str(port):
            return False
        return name in names or (not is_loopback(host) and _is_address(name))

    return known


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def bound(host: str, port: int | None) -> socket.socket:
    """A socket at the requested port, or at the first free one from the default on."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if port is not None else [*range(PORT, PORT + 20), 0]:
        try:
            listening = socket.create_server((host, number), family=kind)
        except OSError as error:
            problem = error
            continue
        # Connections inherit it. Without it a page's second packet waits 40 ms for the browser to confirm the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    raise HeadwiseError(f"cannot listen on {host}:{port} ({problem.strerror})", "a free port", "--port 0")


def settings() -> dict[str, Any]:
    """Settings of uvicorn: one process, no log, slow and silent connections closed."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):
        """Close connections that do not send a request in time."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(SLOW, lambda: None if self.cycle is not None else self.transport.close())

    options: dict[str, Any] = {"log_level": "error", "access_log": False, "lifespan": "off", "ws": "none"}
    options |= {"http": Patient, "proxy_headers": False, "server_header": False, "limit_concurrency": 512}
    return options | {"timeout_keep_alive": 10, "timeout_graceful_shutdown": 1, "h11_max_incomplete_event_size": 16_384}


def serve(
    opened: Opened,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the lab until Ctrl-C."""
    try:
        import uvicorn
    except ImportError:
        raise missing_extra("uvicorn", "lab", "the lab") from None
    listening, token = bound(host, port), secrets.token_urlsafe(24)
    number = listening.getsockname()[1]
    app = application(opened, token, hosts_of(host, number))
    shown = f"[{host}]" if ":" in host else "127.0.0.1" if host == "0.0.0.0" else host
    address = f"http://{shown}:{number}/{token}/"
    say(f"{opened.name} in the lab: {address}")
    if not is_loopback(host):
        say(f"warning: other machines reach {host}, and nothing is encrypted; all who have the address may ask")
    say("Ctrl-C ends it")
    server = uvicorn.Server(uvicorn.Config(app, **settings()))
    if browser:
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
    try:
        server.run(sockets=[listening])
    except Terminated:
        raise
    except KeyboardInterrupt:
        say("the lab is closed")
    finally:
        with suppress(OSError):
            listening.close()
        app.state.desk.close()
