"""Garbage on raw sockets: odd methods, paths, headers, framings, codings and documents. Nothing is a 5xx, nothing leaves a
trace in the log, and whatever was stored of it can be read again. REEF_SOAK=1 sends a hundred times as much."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clients import answers
from tests.support import Daemon, daemon, provider

SOAK = bool(os.environ.get("REEF_SOAK"))
EXAMPLES = 30_000 if SOAK else 300
PATHS = (
    "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/reef/report",
    "/reef/records", "/reef/records/x", "/reef/records/x/request", "/reef/scenarios", "/reef/scenarios/s",
    "/reef/scenarios/s/records", "/reef/scenarios/s/releases/r0/diff", "/reef/scenarios/s/rollback", "/reef/status",
    "/reef/scenarios/s/step", "/reef/events", "/healthz", "/metrics", "/openapi.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with (
        provider(answers.chat_plain(tools=False)) as upstream,
        daemon(tmp_path_factory.mktemp("garbage"), reef_upstream_url=upstream.url, reef_max_body_mb="1") as running,
    ):
        yield running
        with running.client("s") as client:
            for row in client.get("/reef/scenarios")["scenarios"]:
                read_all(running, row["name"])
            assert client.status()["daemon"]["ready"] and client.http.get("/metrics").status_code == 200
        said = (running.home / "logs" / "reef.jsonl").read_text(encoding="utf-8")
        assert "Traceback" not in said and "bug while" not in said, said[-4000:]
        assert (running.home / "logs" / "start.log").read_text(encoding="utf-8") == ""


def read_all(one: Daemon, scenario: str) -> None:
    """Every record of a scenario with its bodies, in lists and alone."""
    last = 0
    with one.client(scenario) as client:
        while rows := client.records(scenario, after=last, limit=500, bodies="true"):
            last = rows[-1]["seq"]
            client.record(rows[-1]["agent_record_id"])


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**19, -(10**30), 10**400, 1e308, float("inf"), float("nan"), 2**63, 0, -0.0]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "\udc99 end", "\x00", "x" * 5000, "é\u202e", "r0", "s", "../x"]),
)
fields = st.sampled_from(
    ["model", "messages", "stream", "input", "prompt_cache_key", "score", "references", "feedback", "metadata", "session",
     "agent_record_id", "scenario", "records", "request", "response", "training", "tokens", "loss_mask", "state", "usage",
     "created_at", "release_id", "name", "to", "rollout_log_probs", "reason", ""]
)  # fmt: skip
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(fields, inner, max_size=5)),
    max_leaves=12,
)
deep = st.builds(
    lambda opening, closing, depth: b'{"messages": ' + opening * depth + b"1" + closing * depth + b"}",
    *(st.sampled_from([[b"[", b'{"a":']]).map(lambda pair: pair[0]), st.just(b"]")),
    st.sampled_from([10, 250, 600, 3000, 100_000]),
)
bodies = st.one_of(
    documents.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
    documents.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.binary(max_size=200),
    deep,
    st.sampled_from([b"", b"{}", b"null", b'{"a":1', b'{"a":' + b"9" * 6000 + b"}", b'{"a":1e999}', b"\xef\xbb\xbf{}",
                     b'{"x":"' + b"y" * 1_200_000 + b'"}', b'{"stream":true,"messages":[]}']),
)  # fmt: skip
CODINGS = (b"gzip", b"deflate", b"zstd", b"br", b"identity", b"gzip, gzip", b"x" * 300, b"\xff")
values = st.one_of(
    st.binary(max_size=40).filter(lambda raw: not set(raw) & {10, 13, 0}),
    st.sampled_from([b"", b"s", b"../x", b"\xe9", b"a" * 9000, b"true", b"-1", b"9" * 5000, b"r0", b"{}"]),
)
names = st.sampled_from(
    [b"x-reef-scenario", b"x-reef-session", b"x-reef-tag-a", b"x-reef-tag-", b"x-reef-release-id", b"x-reef-actor",
     b"idempotency-key", b"last-event-id", b"content-type", b"accept", b"origin", b"cookie", b"range", b"te", b"upgrade",
     b"user-agent", b"anthropic-beta", b"if-none-match", b"expect", b"connection", b"x-odd", b"x odd", b"\xff", b""]
)  # fmt: skip
targets = st.one_of(
    st.sampled_from(PATHS),
    st.builds(lambda path, rest: path + rest, st.sampled_from(PATHS), st.sampled_from(
        ["/", "//", "?limit=-1", "?limit=" + "9" * 5000, "?before=%00", "?since=nan", "?after=1e5", "?x=%ff%fe", "/%00",
         "/%ed%a0%80", "/..%2f..", "?type=\\", "?bodies=2", "#x", "?" + "a=1&" * 500])),
    st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=60),
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bool]:
    """One request's bytes, and whether its framing is honest, so that an answer must come."""
    method = draw(st.sampled_from(["GET", "POST", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE",
                                   "CONNECT", "get", "BREW", "\xff", ""]))  # fmt: skip
    target = draw(targets)
    version = draw(st.sampled_from(["HTTP/1.1"] * 6 + ["HTTP/1.0", "HTTP/9.9", "HTCPCP/1.0", ""]))
    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer TOKEN")]
    headers += draw(st.lists(st.tuples(names, values), max_size=4))
    body = draw(bodies)
    coding = draw(st.sampled_from([None, None, None, *CODINGS]))
    if coding is not None:
        headers.append((b"content-encoding", coding))
        if draw(st.booleans()):
            body = {b"gzip": gzip.compress, b"zstd": zstandard.ZstdCompressor().compress}.get(coding, bytes)(body)
    framing = draw(
        st.sampled_from(["length"] * 6 + ["chunked", "short", "long", "negative", "twice", "garbage", "none"])
    )
    lengths: dict[str, list[Any]] = {
        "length": [len(body)], "short": [max(0, len(body) - 3)], "long": [len(body) + 50], "negative": [-1],
        "twice": [len(body), len(body) + 1], "garbage": ["0x10"],
    }  # fmt: skip
    headers += [(b"content-length", str(length).encode()) for length in lengths.get(framing, [])]
    if framing == "chunked":
        headers.append((b"transfer-encoding", b"chunked"))
        size = draw(st.sampled_from([f"{len(body):x}", "zz", "-1", "f" * 40, f"{len(body):x};x=y"]))
        body = size.encode() + b"\r\n" + body + b"\r\n0\r\n\r\n"
    head = f"{method} {target} {version}\r\n".encode("latin-1")
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    plain = framing == "length" and coding is None and version == "HTTP/1.1" and method in ("GET", "POST")
    return head + lines + b"\r\n" + body, plain and target in PATHS and all(name.isascii() for name, _ in headers)


def status_of(one: Daemon, raw: bytes, *, honest: bool) -> int | None:
    """Send bytes, read the beginning of the answer, leave; None when none comes."""
    host, port = one.url.removeprefix("http://").split(":")
    token = (one.home / "token").read_bytes().strip()
    with socket.create_connection((host, int(port)), timeout=20 if honest else 0.1) as sock:
        try:
            sock.sendall(raw.replace(b"TOKEN", token))
            answer = sock.recv(4096)
            while b"\r\n" not in answer and (more := sock.recv(4096)):
                answer += more
        except (TimeoutError, ConnectionError):
            return None
    return int(answer.split(b" ")[1]) if answer else None


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not SOAK,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(request=requests())
def test_garbage_is_never_our_fault(one: Daemon, request: tuple[bytes, bool]) -> None:
    raw, honest = request
    status = status_of(one, raw, honest=honest)
    assert status is None or status < 500, (status, raw[:2000])


@settings(max_examples=EXAMPLES, deadline=None, derandomize=not SOAK, database=None,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])  # fmt: skip
@given(path=st.sampled_from(PATHS), document=documents, scenario=st.sampled_from(["s", "t", "", "a b"]))
def test_documents_of_any_shape_are_answered(one: Daemon, path: str, document: Any, scenario: str) -> None:
    with one.client("s") as client:
        raw = json.dumps(document).encode("utf-8", "surrogatepass")
        answer = client.http.post(path, content=raw, headers={"x-reef-scenario": scenario})
        assert answer.status_code < 500, (answer.text, path, raw)
        if answer.status_code >= 400 and answer.status_code not in (405, 404):
            error = answer.json()["error"]
            assert error["message"], path


@pytest.mark.parametrize("piece", [b"x-more: " + b"y" * 50_000 + b"\r\n", b"y" * 50_000], ids=["headers", "target"])
def test_a_request_that_never_comes_to_its_body_is_refused(one: Daemon, piece: bytes) -> None:
    """Whoever can connect can send headers: it takes no token, so it must not take memory either."""
    host, port = one.url.removeprefix("http://").split(":")
    begin = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n" if piece.endswith(b"\n") else b"GET /"
    with socket.create_connection((host, int(port)), timeout=20) as sock, pytest.raises(ConnectionError):
        sock.sendall(begin + piece * 2000)


def test_the_log_names_no_secret(tmp_path: Path) -> None:
    """What cannot be parsed is not quoted in the log."""
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as running:
        token = (tmp_path / "token").read_text(encoding="utf-8").strip()
        status_of(
            running, f"GET /x HTTP/1.1\r\nauthorization: Bearer {token}\xff\x00\r\n\r\n".encode("latin-1"), honest=False
        )
    assert token not in (tmp_path / "logs" / "reef.jsonl").read_text(encoding="utf-8")
