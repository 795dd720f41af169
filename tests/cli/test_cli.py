"""The command line as a user types it: output, exit codes, what errors say. Every test runs the real program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reef.inference.testing import Script, ScriptedProvider
from tests.clients import answers
from tests.faults.world import ROOT, STUB, imported
from tests.support import Daemon, daemon, eventually, provider


@dataclass(frozen=True)
class Ran:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as the one JSON document it must be."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def reef(home: Path, *words: str, stdin: str = "", **environ: str) -> Ran:
    """Run ``reef WORDS`` on ``home``; whatever happens, no traceback is shown."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "reef.cli.main", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**kept, "PYTHONPATH": path, "REEF_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200", **environ},
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


def schema(ran: Ran, kind: str) -> dict[str, Any]:
    """The JSON document of a command that succeeded, with its versioned schema."""
    assert ran.code == 0, ran.err
    assert ran.document["schema"] == f"reef.{kind}/1"
    return ran.document


def refused(ran: Ran, code: int, *said: str) -> None:
    """A failed command: its exit code, nothing on stdout, and an error that says what is wrong and what to do."""
    assert (ran.code, ran.out) == (code, ""), (ran.out, ran.err)
    for words in said:
        assert words in ran.err


# -- without a daemon


@pytest.mark.parametrize(
    "words",
    [
        ("status",), ("call", "hello", "--model", "m"), ("report", "abc", "--score", "1"), ("records", "show", "abc"),
        ("scenarios",), ("releases", "show", "r1", "-s", "s"), ("rollback", "--yes"), ("step",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_commands_that_need_a_daemon_say_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    refused(reef(tmp_path, *words), 3, "no daemon runs on", "reef up")


def test_an_error_is_json_when_json_is_asked_for(tmp_path: Path) -> None:
    ran = reef(tmp_path, "status", "--json")
    assert (ran.code, ran.out) == (3, "")
    error = json.loads(ran.err)["error"]
    assert error["code"] == "daemon_unreachable" and error["message"] and "reef up" in error["hint"]


@pytest.mark.parametrize(
    "words",
    [
        ("nothing",),
        ("call",),
        ("records", "-n", "0"),
    ],
    ids=" ".join,
)
def test_usage_errors_are_two(tmp_path: Path, words: tuple[str, ...]) -> None:
    ran = reef(tmp_path, *words)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage: " in ran.err or "Try " in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("up", "--reef.prot", "1", "--upstream-url", "http://127.0.0.1:9"),
            ("unknown key reef.prot", "did you mean reef.port?"),
        ),
        (("up", "--reef.port", "no"), ("--reef.port", "must be a whole number")),
        (("up", "--reef.port"), ("--reef.port needs a value",)),
        (("up", "extra"), ("unknown argument 'extra'", "--reef.port 8901")),
        (
            ("up", "--recipe", "gpro", "--upstream-url", "http://127.0.0.1:9"),
            ("no recipe 'gpro'", "did you mean grpo?"),
        ),
        (("serve", "--port", "99999"), ("--reef.port", "at most 65535")),
        (("up", "--host", "0.0.0.0", "--upstream-url", "http://127.0.0.1:9"), ("no token is set", "reef.token")),
    ],
)
def test_a_wrong_configuration_stops_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], said: tuple[str, ...]
) -> None:
    refused(reef(tmp_path, *words), 2, *said)
    assert not (tmp_path / "reef.db").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reef:\n  port: 1\n  prot: 2\n", "serve.yaml:3: unknown key reef.prot"),
        ("reef:\n  port: 1\n  port: 2\n", "serve.yaml:3: port is given twice"),
        ("reef:\n  recipe: pg\n  port: soon\n", "serve.yaml:3: reef.port must be a whole number"),
        ("reef:\n  port: [1\n", "serve.yaml:3"),
        (
            "reef:\n  upstream_model: ${NO_SUCH_VARIABLE}\n",
            "serve.yaml:2: reef.upstream_model uses ${NO_SUCH_VARIABLE}",
        ),
        ("- 1\n", "serve.yaml: the file must be a mapping"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    words = ("up", "-c", str(path))
    refused(reef(tmp_path / "home", *words, REEF_UPSTREAM_URL="http://127.0.0.1:9"), 2, said)
    assert not (tmp_path / "home" / "reef.db").exists()


def test_what_works_without_a_daemon(tmp_path: Path) -> None:
    recipes = {row["kind"]: row for row in schema(reef(tmp_path, "recipe", "list", "--json"), "recipes")["recipes"]}
    assert {"record", "sft", "pg", "rwr", "grpo"} <= recipes.keys()
    assert recipes["pg"]["surface"] == "weights" and recipes["record"]["surface"] == "nothing"
    shown = schema(
        reef(tmp_path, "config", "show", "--json", REEF_PORT="8123", REEF_UPSTREAM_API_KEY="sk-secret"), "config"
    )
    assert shown["reef.port"] == {"value": 8123, "origin": "env REEF_PORT"}
    assert "sk-secret" not in json.dumps(shown)
    checks = {row["id"]: row for row in schema(reef(tmp_path, "doctor", "--json"), "doctor")["doctor"]}
    assert checks["python"]["ok"] and checks["sqlite"]["ok"]
    assert not checks["daemon"]["ok"] and checks["daemon"]["fix"] == "reef up"
    assert schema(reef(tmp_path, "down", "--json"), "down")["stopped"] is False
    assert reef(tmp_path, "logs").code != 0
    assert re.fullmatch(r"reef \d+\.\d+\S*\n", reef(tmp_path, "--version").out)
    help_text = reef(tmp_path, "--help")
    assert help_text.code == 0
    for command in ("up", "down", "status", "call", "report", "records", "releases", "rollback", "doctor", "demo"):
        assert command in help_text.out
    assert "3 daemon not reachable" in " ".join(help_text.out.split())


# -- a daemon's life


def test_up_twice_down_twice(tmp_path: Path) -> None:
    with provider(answers.chat_plain(tools=False)) as upstream:
        words = ("up", "--port", "0", "--upstream-url", upstream.url, "--upstream-model", "m-1", "--json")
        first = schema(reef(tmp_path, *words), "up")
        assert first["started"] is True and first["home"] == str(tmp_path)
        again = schema(reef(tmp_path, *words), "up")
        assert (again["started"], again["pid"], again["url"]) == (False, first["pid"], first["url"])
        refused(
            reef(tmp_path, "serve", "--quiet", "--port", "0", "--upstream-url", upstream.url),
            3,
            f"pid {first['pid']} already uses",
        )
        refused(reef(tmp_path, "serve"), 3, f"pid {first['pid']} already uses")  # and not that it needs a model
        assert first["url"] in reef(tmp_path, "status").out
        assert schema(reef(tmp_path, "down", "--json"), "down")["stopped"] is True
        assert schema(reef(tmp_path, "down", "--json"), "down")["stopped"] is False
        refused(reef(tmp_path, "status"), 3, "reef up")


def test_two_starts_at_once_are_one_daemon(tmp_path: Path) -> None:
    with provider(Script()) as upstream, ThreadPoolExecutor(3) as pool:
        words = ("up", "--port", "0", "--upstream-url", upstream.url, "--json")
        started = [schema(one, "up") for one in pool.map(lambda _: reef(tmp_path, *words), range(3))]
        assert len({found["pid"] for found in started}) == 1
        assert sum(found["started"] for found in started) == 1
        assert schema(reef(tmp_path, "down", "--json"), "down")["stopped"] is True


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with provider(Script()) as upstream:
        port = upstream.url.rpartition(":")[2]
        refused(
            reef(tmp_path, "up", "--port", port, "--upstream-url", upstream.url),
            2,
            f"cannot listen on 127.0.0.1:{port}",
            "--port",
        )


def test_a_daemon_that_was_killed_is_not_reachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with provider(Script()) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url) as one:
        one.kill()
        left = json.loads((tmp_path / "daemon.json").read_text())
        stranger = subprocess.Popen(["sleep", "120"])  # the number of the dead daemon is another program's now
        (tmp_path / "daemon.json").write_text(json.dumps({**left, "pid": stranger.pid}))
        for words in (("status",), ("records",), ("call", "hello"), ("call", "hello", "--model", "m")):
            refused(reef(tmp_path, *words), 3, "reef up")
        assert schema(reef(tmp_path, "down", "--json"), "down")["stopped"] is False
        assert stranger.poll() is None, "nobody signals a program that is not ours"
        words = ("up", "--port", "0", "--upstream-url", upstream.url, "--json")
        assert schema(reef(tmp_path, *words), "up")["started"] is True
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # where nobody listens: loopback needs no proxy
        assert schema(reef(tmp_path, "status", "--json"), "status")["daemon"]["ready"] is True
        assert schema(reef(tmp_path, "down", "--json"), "down")["stopped"] is True
        assert stranger.poll() is None
        stranger.kill()
        stranger.wait()


def test_an_output_that_takes_nothing_is_told_as_one(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "reef.cli.main", "recipe", "list"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60, check=False
        )
    assert done.returncode == 1 and done.stderr == "error: this cannot be written: No space left on device\n"


# -- calls, reports and records in front of a provider


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, ScriptedProvider]]:
    home = tmp_path_factory.mktemp("cli")
    with provider(Script()) as upstream:
        settings = {"reef_upstream_url": upstream.url, "reef_upstream_model": "m-1"}
        with daemon(home, **settings) as one:
            play(upstream, answers.chat_plain(tools=False))
            with one.client("default") as client:
                client.call({"model": "m-1", "messages": [{"role": "user", "content": "the first call"}]})
            yield one, upstream


def play(upstream: ScriptedProvider, script: Script) -> None:
    upstream.scripts[:] = [script]
    upstream.seen.clear()


def test_call_and_report(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, answers.chat_stream(tools=False))
    ran = reef(one.home, "call", "look", "--system", "be brief", "--session", "run-1", "--max-tokens", "9")
    assert (ran.code, ran.out) == (0, f"{answers.TEXT}\n")
    receipt = re.search(r"receipt (\S+)", ran.err)
    assert receipt is not None
    body = json.loads(upstream.seen[0].raw)
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "look"}]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m-1", 9, True)

    found = schema(reef(one.home, "report", "--score", "0.5", "--feedback", "fine", "--json"), "report")
    assert found["references"] == [receipt[1]]
    session = schema(reef(one.home, "report", "--session", "run-1", "--score", "1", "--json"), "report")
    assert session["references"] == [receipt[1]]

    play(upstream, answers.chat_plain(tools=False))
    called = schema(reef(one.home, "call", "-", "--json", stdin="from a pipe"), "call")
    assert called["response"]["choices"][0]["message"]["content"] == answers.TEXT
    assert json.loads(upstream.seen[0].raw)["messages"][0]["content"] == "from a pipe"

    record = schema(reef(one.home, "records", "show", receipt[1], "--json"), "record")
    assert record["state"] == "complete" and record["session"] == "run-1"
    assert sorted(record["reports"]) == sorted([found["agent_record_id"], session["agent_record_id"]])
    raw = reef(one.home, "records", "show", receipt[1], "--raw")
    assert json.loads(raw.out) == body
    rows = schema(reef(one.home, "records", "--type", "inference", "-n", "2", "--json"), "records")["records"]
    assert [row["agent_record_id"] for row in rows] == [called["agent_record_id"], receipt[1]]
    table = reef(one.home, "records").out
    assert receipt[1] in table and "report" in table
    assert schema(reef(one.home, "scenarios", "--json"), "scenarios")["scenarios"][0]["recipe"] == "record"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("records", "show", "nobody"), 4, ("no record 'nobody'", "reef records")),
        (("records", "show", "nobody", "--raw"), 4, ("no record 'nobody'", "reef records")),
        (("records", "-s", "nowhere"), 4, ("no scenario 'nowhere'", "reef scenarios")),
        (("releases", "-s", "nowhere"), 4, ("no scenario 'nowhere'", "reef scenarios")),
        (("scenarios", "new", "../x"), 2, ("not a valid name",)),
        (("report", "abc"), 2, ("says nothing",)),
        (("report", "abc", "--score", "nan"), 2, ("finite",)),
        (("report", "--session", "unknown", "--score", "1"), 4, ("no finished calls",)),
        (("rollback",), 1, ("has no releases", "its recipe updates nothing")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and value[0].isalpha() else "",
)
def test_refusals_say_what_to_do(
    world: tuple[Daemon, ScriptedProvider], words: tuple[str, ...], code: int, said: tuple[str, ...]
) -> None:
    refused(reef(world[0].home, *words), code, *said)


def test_a_provider_that_fails_is_an_error_of_the_call(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script([b'{"error":{"message":"slow down","type":"rate_limit"}}'], status=429))
    for words in (("call", "x"), ("call", "x", "--no-stream"), ("call", "x", "--json")):
        refused(reef(one.home, *words), 1, "slow down")


def test_logs_are_there(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, _ = world
    assert "ready at" in reef(one.home, "logs").out
    lines = [json.loads(line) for line in reef(one.home, "logs", "--json").out.splitlines()]
    assert any(line["message"].startswith("ready at") for line in lines)


# -- the chain, on a recipe whose steps cost nothing


def test_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = {"reef_upstream_url": "http://127.0.0.1:9", "reef_recipe": STUB, "reef_batch_size": "2"}
    with daemon(tmp_path, **settings) as one, one.client() as client:
        client.post("/reef/records", {"records": [imported(f"i{number}") for number in range(1, 8)]})
        refused(reef(tmp_path, "step"), 1, "nothing to train on", "reef status")
        for number in range(1, 5):
            client.report(score=1, references=[f"i{number}"])
        eventually(lambda: client.get("/reef/scenarios/s")["step"] == 2)

        rows = schema(reef(tmp_path, "releases", "--json"), "releases")["releases"]
        assert [(row["release_id"], row["parent"], row["state"]) for row in rows] == [
            ("r2", "r1", "serving"),
            ("r1", "r0", "published"),
            ("r0", None, "published"),
        ]
        assert "serving" in reef(tmp_path, "releases").out
        one_of_them = schema(reef(tmp_path, "releases", "show", "r1", "--json"), "release")
        assert len(one_of_them["records"]) == 4
        refused(reef(tmp_path, "releases", "show", "r99"), 4, "no release 'r99'", "reef releases")
        refused(reef(tmp_path, "rollback", "r99", "--yes"), 4, "no release 'r99'", "reef releases")
        refused(reef(tmp_path, "promote", "r1", "--yes"), 1, "only a held release can be promoted")
        refused(reef(tmp_path, "rollback", "r1"), 2, "--yes")

        back = schema(reef(tmp_path, "rollback", "r1", "--yes", "--json"), "rollback")
        assert (back["release_id"], back["restored_from"], back["state"]) == ("r3", "r1", "serving")
        refused(reef(tmp_path, "rollback", "r1", "--yes"), 1, "already serves")

        paused = schema(reef(tmp_path, "pause", "--json"), "pause")
        assert (paused["name"], paused["state"]) == ("s", "paused")
        for number in (5, 6, 7):
            client.report(score=1, references=[f"i{number}"])
        shown = eventually(lambda: (found := client.get("/reef/scenarios/s"))["batch"]["have"] == 3 and found)
        assert shown["step"] == 2 and "reef resume" in shown["waiting_for"]
        assert "paused" in reef(tmp_path, "status").out
        schema(reef(tmp_path, "resume", "--json"), "resume")
        eventually(lambda: client.get("/reef/scenarios/s")["step"] == 3)
        schema(reef(tmp_path, "step", "--json"), "step")
        eventually(lambda: client.get("/reef/scenarios/s")["step"] == 4)
        status = schema(reef(tmp_path, "status", "--json"), "status")
        assert status["scenarios"][0]["release_id"] == "r5"
        assert status["store"]["records"] == 14


@pytest.mark.parametrize("words", [("up", "--upstream-url", "http://127.0.0.1:9", "--port", "0"), ("serve", "--yes")])
def test_a_home_that_is_a_file_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    home = tmp_path / "file"
    home.write_text("x")
    ran = reef(home, *words, REEF_UPSTREAM_URL="http://127.0.0.1:9")
    assert ran.code == 1 and str(home) in ran.err


def test_names_that_the_terminal_cannot_show_are_shown_escaped(tmp_path: Path) -> None:
    home = tmp_path / "h\u00fc"
    ran = reef(home, "status", PYTHONIOENCODING="ascii:strict", PYTHONUTF8="1")
    assert ran.code == 3 and "h\\xfc" in ran.err
