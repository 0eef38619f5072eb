"""The server: what is asked is answered, and every attack gets a short refusal."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from labs import Lab

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.lab import server

TEXT = "w1 m0a w3 w4"


def test_answers_are_those_of_predict_under_the_same_gates(lab, opened, gates):
    found = lab.ask("answers", text=TEXT, gates=gates)
    model = opened.subject
    with gated(model.encoder, torch.tensor(gates)):
        after = {name: model.predict(name, [TEXT])[0].probabilities for name in model.tasks}
    before = {name: model.predict(name, [TEXT])[0].probabilities for name in model.tasks}
    for when, expected in (("before", before), ("after", after)):
        for name, chances in expected.items():
            assert all(abs(found[when][name]["probabilities"][k] - v) < 1e-5 for k, v in chances.items())


def test_what_takes_long_comes_line_by_line(lab, gates):
    assert lab.lines("flip", text=TEXT, task="toy0")[-1]["done"]
    found = lab.lines("scores", text=TEXT, gates=gates)
    assert found[0]["n"] == 16 and found[-1]["n"] == 48


def test_everything_else_the_page_asks_for_is_there(lab, gates):
    assert lab.ask("why", text=TEXT, task="toy0")["effects"]
    assert lab.ask("attention", text=TEXT, layer=1)["tokens"][0] == "[CLS]"
    assert "model.gated(gates)" in lab.ask("masks", text=TEXT, gates=gates, what="python")["text"]
    for path, kind in (
        ("", "text/html"),
        ("lab.css", "text/css"),
        ("lab.js", "text/javascript"),
        ("about.json", "json"),
    ):
        status, text, headers = lab.send(path)
        assert status == 200 and kind in headers["Content-Type"] and len(text) > 100
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers and "Server" not in headers
    assert "script-src 'self'" in lab.send()[2]["Content-Security-Policy"]


def test_the_report_of_a_study_links_back_to_the_lab(opened):
    import fake_study

    from headwise.io.files import plain

    running = Lab(replace(opened, study=plain(fake_study.make(2, 4, 2))))
    try:
        status, text, headers = running.send("report")
    finally:
        running.close()
    assert status == 200 and b'href="./" data-role="lab"' in text and b"default-src &#39;none&#39;" in text
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"


# -- attacks


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/about.json", "/T0KEN/", "/t0ken", "/t0kenx/lab.js"])
def test_without_the_token_there_is_nothing(lab, path):
    status, text, _ = lab.send(path, root=f"http://127.0.0.1:{lab.port}")
    assert status in (403, 404) and b"headwise" not in text.replace(b"headwise lab printed", b"")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1.evil.example", "10.0.0.1:{port}", ""]
)
def test_a_foreign_host_is_refused(lab, host):
    assert lab.send("about.json", Host=host.format(port=lab.port))[0] in (400, 403)
    for own in ("localhost", f"localhost:{lab.port}", f"[::1]:{lab.port}"):
        assert lab.send("about.json", Host=own)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_foreign_page_is_refused(lab, headers):
    assert lab.send("answers", {"client": "x", "text": TEXT}, **headers)[0] == 403
    own = {"Origin": f"http://127.0.0.1:{lab.port}", "Sec_Fetch_Site": "same-origin"}
    assert lab.send("answers", {"client": "x", "text": TEXT}, **own)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "../pyproject.toml",
        "..%2f..%2fetc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "/etc/passwd",
        "lab.css/../../secret",
        "assets/lab.js",
        "report",
        "lab.js%00",
        "..\\..\\x",
    ],
)
def test_paths_lead_nowhere(lab, path):
    connection = http.client.HTTPConnection("127.0.0.1", lab.port, timeout=20)
    connection.putrequest("GET", f"/{lab.token}/{path}", skip_host=False)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status in (400, 404) and len(answer.read()) < 200
    connection.close()


def test_bodies_are_small_json_objects(lab):
    assert lab.send("answers", b"x" * (server.BODY + 1))[0] == 413
    assert lab.send("answers", b"[1]")[0] == 400 and lab.send("answers", b"{")[0] == 400
    assert lab.send("answers", b"[" * 100_000)[0] == 400
    assert lab.send("answers", b"\xff\xfe")[0] == 400
    assert lab.send("answers", b"{}", Content_Type="text/plain")[0] == 415, "what a foreign form can send"
    status, text, _ = lab.send("answers", {"client": "x", "text": "w" * 5000})
    assert status == 422 and b"4000 at most" in text
    chunks = http.client.HTTPConnection("127.0.0.1", lab.port, timeout=20)
    body = (b"x" * 65_536 for _ in range(40))
    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    try:
        chunks.request("POST", f"/{lab.token}/answers", body, headers, encode_chunked=True)
        assert chunks.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # it hung up before all was sent, which is as good
    chunks.close()


def test_slow_clients_are_cut_off_and_hold_up_nobody(lab, monkeypatch):
    monkeypatch.setattr(server, "SLOW", 0.4)
    silent = [socket.create_connection(("127.0.0.1", lab.port)) for _ in range(30)]
    slow = socket.create_connection(("127.0.0.1", lab.port))
    head = f"POST /{lab.token}/answers HTTP/1.1\r\nHost: 127.0.0.1:{lab.port}\r\nContent-Type: application/json\r\n"
    slow.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
    begun = time.monotonic()
    assert lab.ask("answers", text=TEXT) and time.monotonic() - begun < 2
    slow.settimeout(10)
    assert b"408" in slow.recv(200)
    for connection in silent:
        connection.settimeout(10)
        assert connection.recv(1) == b"", "closed by the server"
        connection.close()
    slow.close()


def test_script_in_texts_comes_back_as_text(lab):
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    status, _, headers = lab.send("answers", {"client": "x", "text": bad})
    assert status == 200 and headers["Content-Type"] == "application/json"
    status, _, headers = lab.send("why", {"client": "x", "text": "w1", "task": bad})
    assert (
        status == 422
        and headers["Content-Type"] == "application/json"
        and headers["X-Content-Type-Options"] == "nosniff"
    )


def test_an_error_inside_is_named_but_not_shown(lab, monkeypatch, capfd):
    def broken(data):
        raise RuntimeError("secret of the machine")

    monkeypatch.setitem(lab.app.state.desk._calls, "answers", broken)
    status, text, _ = lab.send("answers", {"client": "x", "text": "w1"})
    assert status == 500 and b"secret" not in text and b"RuntimeError" in text
    assert "secret of the machine" in capfd.readouterr().err


def test_methods_other_than_those_of_a_route_are_refused(lab):
    for method, path in (
        ("PUT", "answers"),
        ("DELETE", ""),
        ("GET", "answers"),
        ("POST", "about.json"),
        ("OPTIONS", "answers"),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", lab.port, timeout=20)
        connection.request(method, f"/{lab.token}/{path}")
        assert connection.getresponse().status in (404, 405)
        connection.close()


# -- the process


def test_hosts_that_are_this_server():
    own, open_ = server.hosts_of("127.0.0.1", 80), server.hosts_of("0.0.0.0", 80)
    assert own("127.0.0.1:80") and own("localhost") and own("[::1]:80") and own("LOCALHOST:80")
    assert not own("192.168.0.3:80") and open_("192.168.0.3:80") and open_("[fe80::1]:80")
    assert not open_("evil.example:80") and not open_("evil.example") and not own("127.0.0.1:81")
    assert (
        server.is_loopback("127.0.0.2") and not server.is_loopback("0.0.0.0") and not server.is_loopback("example.org")
    )


def test_a_port_that_is_taken_is_told_and_the_usual_one_moves_on():
    taken = server.bound("127.0.0.1", 0)
    with pytest.raises(HeadwiseError, match="--port 0"):
        server.bound("127.0.0.1", taken.getsockname()[1])
    first, second = server.bound("127.0.0.1", None), server.bound("127.0.0.1", None)
    assert first.getsockname()[1] != second.getsockname()[1]
    for each in (taken, first, second):
        each.close()


def test_an_answer_does_not_wait_for_a_packet_to_be_confirmed():
    with (
        server.bound("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


SERVES = """
from labs import opened_toy
from headwise.lab.server import serve
serve(opened_toy(), "127.0.0.1", 0, browser=False, say=lambda line: print(line, flush=True))
"""


def test_ctrl_c_ends_it_cleanly():
    support = Path(__file__).parents[1] / "support"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", SERVES], cwd=support, **pipes)
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert "Ctrl-C" in lines[1]
    status = 0
    for _ in range(100):
        try:
            with urllib.request.urlopen(lines[0].split()[-1] + "about.json") as answer:
                status = answer.status
            break
        except urllib.error.URLError:
            time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (status, process.returncode, err) == (200, 0, "") and "the lab is closed" in out


def test_hosts_that_others_reach_are_warned_of(opened, monkeypatch):
    uvicorn = pytest.importorskip("uvicorn")
    said: list[str] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    server.serve(opened, "0.0.0.0", 0, browser=False, say=said.append)
    server.serve(opened, "127.0.0.1", 0, browser=False, say=said.append)
    assert [("warning" in line) for line in said] == [False, True, False, False, False]
