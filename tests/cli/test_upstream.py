"""What a person sees of a provider that does not answer, and of settings that are not those the daemon runs with."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from reef.config import load
from reef.daemon.local import unread_variables
from reef.inference.testing import Script
from tests.cli.test_cli import reef, refused, schema
from tests.clients import answers
from tests.faults.world import ROOT
from tests.support import Daemon, daemon, provider

CHAT = {"model": "m-1", "messages": [{"role": "user", "content": "hello"}]}


def upstream_of(one: Daemon) -> dict[str, Any]:
    with one.client(None) as client:
        found: dict[str, Any] = client.status()["inference"]["upstream"]
        return found


def checks(one: Daemon, code: int = 0) -> dict[str, Any]:
    ran = reef(one.home, "doctor", "--json")
    assert ran.code == code, ran.out + ran.err
    return {check["id"]: check for check in ran.document["doctor"]}


def test_an_upstream_that_is_not_there_is_seen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # free, and nobody's, from the end of this block on
    url = f"http://someone:secret-word@127.0.0.1:{port}/v1"
    with daemon(tmp_path, reef_upstream_url=url, reef_upstream_model="m-1") as one:
        address = f"http://127.0.0.1:{port}/v1"
        assert upstream_of(one) == {"url": address, "failing": False, "last_failure": None}
        check = checks(one)["upstream"]
        assert check["state"] == "warning" and f"{address} takes no connection" in check["message"] and check["fix"]
        for words in (("call", "hello"), ("call", "hello", "--no-stream")):
            refused(reef(tmp_path, *words), 1, "cannot be reached", "upstream URL", "try: see: reef status")
        found = upstream_of(one)
        assert found["failing"] and found["last_failure"]["code"] == "upstream_error"
        said = reef(tmp_path, "status").out
        assert "FAILING  upstream_error" in said and f"provider m-1 at {address}" in said and "try: start it" in said
        check = checks(one, code=1)["upstream"]
        assert (
            check["state"] == "error" and "cannot be reached" in check["message"] and "--upstream-url" in check["fix"]
        )
        log = reef(tmp_path, "logs", "--level", "warning").out
        assert log.count("calls fail (upstream_error)") == 1, "of several in a row one line tells"
        said = reef(tmp_path, "doctor").out
        assert "error    upstream" in said and "ok       sqlite" in said
        everything = said + log + json.dumps(found) + reef(tmp_path, "records").out
        assert "secret-word" not in everything


@pytest.mark.parametrize(
    ("script", "code", "way"),
    [
        (Script([b'{"error":{"message":"wrong key"}}'], status=401), "upstream_401", "check the key"),
        (Script([b'{"error":{"message":"no"}}'], status=500), "upstream_500", "reef records --state failed"),
    ],
    ids=["key", "server"],
)
def test_an_upstream_that_refuses_is_seen_until_it_answers(tmp_path: Path, script: Script, code: str, way: str) -> None:
    with (
        provider(script, answers.chat_plain(tools=False)) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url, reef_upstream_model="m-1") as one,
    ):
        assert checks(one)["upstream"]["state"] == "ok"
        assert reef(tmp_path, "call", "x", "--no-stream").code == 1
        assert upstream_of(one)["failing"]
        said = reef(tmp_path, "status").out
        assert f"FAILING  {code}" in said and way in said
        assert reef(tmp_path, "call", "x", "--no-stream").code == 0
        found = upstream_of(one)
        assert not found["failing"] and found["last_failure"]["code"] == code, "what was is still told"
        said = reef(tmp_path, "status")
        assert said.code == 0 and f"failed   {code}" in said.out and "FAILING" not in said.out
        assert "answers again" in reef(tmp_path, "logs").out


def test_a_request_that_is_refused_is_no_failure_of_the_upstream(tmp_path: Path) -> None:
    script = Script([b'{"error":{"message":"no such parameter"}}'], status=400)
    with provider(script) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url) as one:
        with one.client("s") as client:
            assert client.http.post("/v1/chat/completions", json=CHAT).status_code == 400
        assert upstream_of(one) == {"url": upstream.url, "failing": False, "last_failure": None}


# -- settings


def test_up_with_other_settings_names_them(tmp_path: Path) -> None:
    with provider(Script()) as upstream:
        home = tmp_path / "home"
        words = ("up", "--port", "0", "--upstream-url", upstream.url, "--upstream-model", "m-1")
        first = schema(reef(home, *words, "--json", REEF_UPSTREAM_API_KEY="sk-first"), "up")
        port = first["url"].rpartition(":")[2]
        file = tmp_path / "serve.yaml"
        file.write_text("reef:\n  upstream_model: m-3\n")
        try:
            for again in (("up",), words, ("up", "--port", port), ("up", "--recipe", "record")):
                same = reef(home, *again, REEF_UPSTREAM_API_KEY="sk-first")
                wanted = 1 if again[-1] == "record" else 0
                assert same.code == wanted, same.err
            for given, environ, said in (
                (
                    ("--upstream-model", "m-2"),
                    {},
                    "--reef.upstream_model: reef.upstream_model is m-2, it runs with m-1",
                ),
                (("--port", "1"), {}, f"reef.port is 1, it runs with {port}"),
                (("--training.seed", "7"), {}, "training.seed is 7, it runs with 0"),
                (("-c", str(file)), {}, "serve.yaml:2: reef.upstream_model is m-3, it runs with m-1"),
                ((), {"REEF_LOG_LEVEL": "debug"}, "env REEF_LOG_LEVEL: reef.log_level is debug, it runs with info"),
                ((), {"REEF_UPSTREAM_API_KEY": "sk-other"}, "reef.upstream_api_key is another"),
            ):
                refused(reef(home, "up", *given, **environ), 1, said, "reef down, then this command once more")
            error = json.loads(reef(home, "up", "--port", "1", "--json").err)["error"]
            assert error["code"] == "other_settings"
            refused(reef(home, "up", "--reef.prot", "1"), 2, "unknown key reef.prot")
            kept = (home / "daemon.json").read_text()
            assert "sk-first" not in kept and (home / "daemon.json").stat().st_mode & 0o077 == 0
        finally:
            assert schema(reef(home, "down", "--json"), "down")["stopped"]


def test_variables_that_nothing_reads_are_named(tmp_path: Path) -> None:
    environ = {"REEF_PROT": "1", "REEF_HOUSE": "x", "REEF_SCENARIO": "s", "REEF_PG_BATCH_SIZE": "4", "REEF_NAMED": "m"}
    file = tmp_path / "serve.yaml"
    file.write_text("reef:\n  upstream_drop_beta: ${REEF_NAMED}\n")
    words = ("config", "show", "-c", str(file))
    ran = reef(tmp_path, *words, **environ)
    assert ran.code == 0 and ran.err.splitlines()[0].startswith("warning: nothing reads REEF_HOUSE")
    assert "warning: nothing reads REEF_PROT (did you mean REEF_PORT?)" in ran.err and len(ran.err.splitlines()) == 2
    assert reef(tmp_path, *words, "--json", **environ).err == ""
    check = next(
        one for one in reef(tmp_path, "doctor", "--json", **environ).document["doctor"] if one["id"] == "config"
    )
    assert check["state"] == "warning" and "REEF_PROT (did you mean REEF_PORT?)" in check["message"]
    ran = reef(tmp_path, "serve", "--port", "99999", **environ)
    assert ran.code == 2


def test_every_variable_that_the_code_names_is_known() -> None:
    named = {
        name for path in (ROOT / "reef").rglob("*.py") for name in re.findall(r'"(REEF_[A-Z_]+)"', path.read_text())
    }
    assert len(named) > 10
    assert unread_variables(load(None, environ={}), dict.fromkeys(named, "1")) == []


def test_up_says_nothing_of_a_recipe_that_cannot_be_imported_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("from reef.recipes.record import RecordRecipe as Mine\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    home = tmp_path / "home"
    with daemon(home, reef_upstream_url="http://127.0.0.1:9", reef_recipe="mine:Mine"):
        monkeypatch.delenv("PYTHONPATH")
        assert schema(reef(home, "up", "--json"), "up")["started"] is False
        refused(reef(home, "up", "--recipe", "record"), 1, "reef.recipe is record, it runs with mine:Mine")


def test_a_bad_value_of_a_variable_says_how_to_be_rid_of_it(tmp_path: Path) -> None:
    for words in (("config", "show"), ("up",)):
        ran = reef(tmp_path, *words, REEF_PORT="soon")
        refused(ran, 2, "env REEF_PORT: reef.port must be a whole number", "unset REEF_PORT")
        assert "reef config show" not in ran.err


def models(*names: str) -> Script:
    return answers.plain({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


def test_a_call_takes_the_only_model_of_its_provider(tmp_path: Path) -> None:
    with provider(models("m-9"), answers.chat_plain(tools=False)) as upstream:
        with daemon(tmp_path, reef_upstream_url=upstream.url):
            assert reef(tmp_path, "call", "hello", "--no-stream").code == 0
        assert json.loads(upstream.seen[-1].raw)["model"] == "m-9"
    with provider(models(*"abcdefg")) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url):
        refused(reef(tmp_path, "call", "hello"), 2, "which model?", "--model NAME (a, b, c, d, e, ...)")
    with provider(Script([b"no such page"], status=404)) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url):
        refused(reef(tmp_path, "call", "hello"), 2, "which model?", "--model NAME, or")


@pytest.mark.parametrize("how", ["--stream", "--no-stream"])
def test_a_report_is_about_the_last_call_also_when_that_failed(tmp_path: Path, how: str) -> None:
    scripts = (answers.chat_plain(tools=False), Script([b'{"error":{"message":"overloaded"}}'], status=500))
    with (
        provider(*scripts) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url, reef_upstream_model="m") as one,
    ):
        first = schema(reef(tmp_path, "call", "hello", "--json", "-s", "a"), "call")["agent_record_id"]
        failed = reef(tmp_path, "call", "hello", how, "-s", "b")
        assert failed.code == 1
        with one.client("b") as client:
            (record,) = client.records("b")
        said = schema(reef(tmp_path, "report", "--score", "0", "--json"), "report")
        assert said["references"] == [record["agent_record_id"]] != [first]


def test_a_call_that_cannot_reach_its_provider_names_its_record(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with daemon(tmp_path, reef_upstream_url=url, reef_upstream_model="m"):
        for name in ("a", "b"):
            ran = reef(tmp_path, "call", "hello", "-s", name)
            refused(ran, 1, f"the model's server at {url} cannot be reached: connection refused.")
            (command,) = re.findall(r"reef (records show \w+)", ran.err)
            assert f"{url} cannot be reached" in reef(tmp_path, *command.split()).out


def test_a_provider_that_does_not_stream_is_heard_all_the_same(tmp_path: Path) -> None:
    with (
        provider(answers.chat_plain(tools=False)) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url),
    ):
        ran = reef(tmp_path, "call", "look", "--model", "m")
    assert (ran.code, ran.out) == (0, f"{answers.TEXT}\n")
