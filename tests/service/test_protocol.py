"""HTTP connections of a service: limits of heads, coalesced writes."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import httpx

from helpers.served_animals import X, saved_model, served

TOP = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
ASKED = b"GET /healthz" + TOP + b"\r\n"


def connected(http):
    url = httpx.URL(http.running.url)
    return socket.create_connection((url.host, url.port), timeout=30)


@pytest.fixture(scope="module")
def served_here(tmp_path_factory):
    path = saved_model(tmp_path_factory.mktemp("wire"))
    with served(path, "--seconds", "1") as http:
        yield http


def test_writes_of_one_iteration_are_coalesced():
    from fecam.service.http_protocol import FLUSH_BYTES, CoalescingTransport

    class Sent(asyncio.Transport):
        def __init__(self):
            super().__init__()
            self.said = []

        def write(self, data):
            self.said.append(bytes(data))

        def close(self):
            self.said.append("closed")

        def is_closing(self):
            return "closed" in self.said

    async def main():
        sent = Sent()
        one = CoalescingTransport(sent, asyncio.get_running_loop())
        one.write(b"top")
        one.write(b"rest")
        assert not sent.said
        await asyncio.sleep(0)
        assert sent.said == [b"toprest"]
        one.write(bytes(FLUSH_BYTES))
        assert sent.said[1:] == [bytes(FLUSH_BYTES)], "backpressure of a slow client works"
        await asyncio.sleep(0)
        one.write(b"last")
        one.close()
        await asyncio.sleep(0)
        assert sent.said[2:] == [b"last", "closed"]
        one.write(b"too late")
        await asyncio.sleep(0)
        assert sent.said[4:] == []

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux counts segments")
def test_a_response_is_one_segment(tmp_path):
    def segments(connection):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
        return int.from_bytes(info[152:156], sys.byteorder)  # tcpi_data_segs_in

    with served(saved_model(tmp_path)) as http, connected(http) as connection:
        for count in range(1, 6):
            connection.sendall(ASKED)
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(2**16)
            assert segments(connection) == count


def test_a_half_closed_connection_gets_its_response(tmp_path):
    with served(saved_model(tmp_path)) as http:
        for _ in range(30):
            with connected(http) as connection:
                connection.sendall(b"GET /v1/model" + TOP + b"\r\n")
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(2**16).startswith(b"HTTP/1.1 200")


def answer_to_endless(http, begin, piece, *, most=2**24):
    """Return the response to an endless head."""
    with connected(http) as connection:
        connection.sendall(begin)
        try:
            for _ in range(most // len(piece)):
                connection.sendall(piece)
        except OSError:  # the connection is closed
            return connection.recv(2**16) if sys.platform == "linux" else b""
        pytest.fail(f"{most} bytes were taken")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /", b"a" * 1000),
        (b"GET /healthz" + TOP + b"X: ", b"a" * 1000),
        (b"GET /healthz" + TOP, b"X: a\r\n" * 100),
        # After a chunked body the trailers count as a head.
        (b"POST /v1/predict" + TOP + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"a" * 1000),
    ],
)
def test_an_endless_head_is_rejected(served_here, begin, piece):
    said = answer_to_endless(served_here, begin, piece)
    assert b"431" in said.partition(b"\r\n")[0] or begin.startswith(b"POST")
    assert served_here.get("/healthz").status_code == 200


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells its memory so")
def test_endless_heads_take_no_memory(served_here):
    def memory():
        status = Path(f"/proc/{served_here.running.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])  # KiB

    before = memory()
    for _ in range(10):
        answer_to_endless(served_here, b"GET /healthz" + TOP, b"X: a\r\n" * 100)
    assert memory() - before < 50_000


def test_an_idle_connection_is_closed(served_here):
    with connected(served_here) as connection:
        assert connection.recv(1) == b""


@pytest.mark.parametrize("asked", [b"", ASKED])
def test_a_slow_head_is_rejected(served_here, asked):
    """Also the second head of a connection."""
    with connected(served_here) as connection:
        if asked:
            connection.sendall(asked)
            assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /healthz" + TOP + b"X: ")
        connection.settimeout(0.1)
        for _ in range(300):
            connection.sendall(b"a")
            try:
                said = connection.recv(2**16)
                break
            except TimeoutError:
                continue
        assert said.startswith(b"HTTP/1.1 408 ") and b"within 1 seconds" in said


def test_long_heads_and_small_chunks_are_accepted(served_here):
    many = {f"x-{number}": "a" * 1000 for number in range(100)}
    assert served_here.get("/healthz", headers=many).status_code == 200
    body = b'{"features": [' + b" " * 200_000 + b"%s]}" % str(X[0].tolist()).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % one for one in body)  # six bytes per byte
    with connected(served_here) as connection:
        kind = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(b"POST /v1/predict" + TOP + kind + chunks + b"0\r\n\r\n")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")


def test_a_connection_stays_open_while_a_response_is_pending(served_here):
    """The head timer does not run while a response is pending."""
    with connected(served_here) as connection:
        for _ in range(4):
            connection.sendall(ASKED)
            assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
            time.sleep(0.5)
