"""The client: errors keep what the daemon said of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import web

from reef.cli.app import run
from reef.client import ReefClient, RemoteError
from reef.errors import BadRequest, DaemonUnreachable, NotFound, Unauthorized
from reef.inference.testing import ScriptedProvider
from tests.support import daemon, on_thread


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "bad_request", 2),
        (401, "unauthorized", 1),
        (404, "no_scenario", 4),
        (409, "id_reused", 1),
        (409, "gate_refused", 5),
        (503, "queue_full", 6),
        (507, "store_full", 6),
        (418, "remote", 1),
    ],
)
def test_a_remote_error_ends_a_command_as_the_error_itself_would(status: int, code: str, exit_code: int) -> None:
    assert RemoteError(status, {"error": {"code": code, "message": "no"}}).exit_code == exit_code


def test_events_that_are_refused_say_so(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one, ReefClient(one.url, "wrong") as client:
        with pytest.raises(RemoteError) as failed:
            next(client.events())
        assert failed.value.status == 401


def test_what_no_header_can_hold_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="header"):
        ReefClient("http://127.0.0.1:9", "token", scenario="ä")
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one, one.client() as client:
        for session, said in (("a\nb", "header"), ("\udcff", "UTF-8")):
            with pytest.raises(BadRequest, match=said):
                client.call({}, session=session)
            with pytest.raises(BadRequest, match=said), client.stream({}, session=session):
                pass
        with pytest.raises(BadRequest, match="UTF-8"):
            client.call({"messages": [{"role": "user", "content": "\udcff"}]})


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_what_would_be_another_path_names_nothing(name: str) -> None:
    with ReefClient("http://127.0.0.1:9", "token") as client:
        for ask in (client.record, client.request_bytes, client.records, client.releases):
            with pytest.raises(NotFound, match="nothing is named"):
                ask(name)


def test_an_id_never_becomes_another_route(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one, one.client() as client:
        with pytest.raises(RemoteError) as failed:
            client.record("../status?x#y")
        assert failed.value.status == 404


class Stranger(ScriptedProvider):
    """Another program where a daemon was: it answers everything with the same text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._same)]

    async def _same(self, request: web.Request) -> web.Response:
        return web.Response(text=self.text)


@pytest.mark.parametrize("text", ["<html>", "", "[1]", "null", "{}", "[" * 100_000, '"x"', "data: <html>\n\n"])
def test_what_is_no_daemon_is_told_as_such(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with on_thread(Stranger(text)) as one, ReefClient(one.url, "token") as client:
        with pytest.raises(DaemonUnreachable, match="no reef daemon of this version"):
            client.status()["daemon"]
        with pytest.raises(DaemonUnreachable, match="no reef daemon of this version"):
            client.report(score=1, references=["x"])["state"]
        if text.startswith("data"):
            with pytest.raises(DaemonUnreachable, match="no reef daemon of this version"):
                next(client.events())
        (tmp_path / "daemon.json").write_text(json.dumps({"url": one.url}), encoding="utf-8")
        (tmp_path / "token").write_text("x", encoding="utf-8")
        for words in (["status"], ["records"], ["releases"], ["knob"], ["pause"]):
            monkeypatch.setattr("sys.argv", ["reef", *words, "--home", str(tmp_path)])
            assert run() == 3
            assert "no daemon runs on" in capsys.readouterr().err


def test_a_token_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text('{"url": "http://127.0.0.1:9"}', encoding="utf-8")
    with pytest.raises(Unauthorized, match=r"token cannot be read.*No such file"):
        ReefClient.from_home(tmp_path)
