"""Real episodes: Reef's own small agent works on tasks in a sandbox, and checks score what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient
from reef.errors import ReefError
from reef.evolve.sandbox import bubblewrap
from reef.gate import replay
from tests.cli.test_cli import reef
from tests.evolve.test_steps import a_step, evolving, fail, importable, steps
from tests.evolve.world import edits, is_proposer, make_tasks, prompt_of
from tests.faults.world import ROOT
from tests.support import eventually

__all__ = ["importable"]  # the fixture

REAL = {"reef_evaluate": "reef.evolve.evaluate:evaluate", "reef_gate": "wins", "reef_retry_s": "0.01"}
BOXES = [
    "none",
    pytest.param("bwrap", marks=pytest.mark.skipif(bubblewrap() is not None, reason=f"no sandbox: {bubblewrap()}")),
]


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    """An assistant message that calls a tool."""
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"content": None, "tool_calls": [call]}


def careful(body: Any) -> dict[str, Any]:
    """Does the job only when the harness tells it to work carefully."""
    if is_proposer(body):
        return edits(("rules", "care", "Work carefully: do what the job says."))
    if body["messages"][-1]["role"] == "tool" or "carefully" not in prompt_of(body):
        return {"content": "done"}
    return tool("write", path="answer.txt", content="yes\n")


@pytest.mark.parametrize("box", BOXES)
def test_who_runs_episodes_without_a_sandbox_is_told(tmp_path: Path, box: str) -> None:
    with evolving(tmp_path, careful, reef_sandbox=box, **REAL) as (one, client, _):
        fail(client)
        unboxed = client.get("/reef/scenarios/s")["evolving"]["unboxed"]
        assert unboxed == (None if box == "bwrap" else "sandbox: none")
        logs = "".join(file.read_text(encoding="utf-8") for file in (one.home / "logs").iterdir())
        for said in (reef(one.home, "status").out, reef(one.home, "doctor").out, logs):
            assert ("without a sandbox" in said) is (box == "none")


def transcripts(home: Path, side: str) -> list[Path]:
    return sorted(home.glob(f"episodes/*/*-{side}"))


@pytest.mark.parametrize("box", BOXES)
def test_a_better_harness_wins_real_episodes(tmp_path: Path, box: str) -> None:
    with evolving(tmp_path, careful, reef_sandbox=box, **REAL) as (one, client, _):
        fail(client)
        step = a_step(client)
        release = client.release("s", step["release_id"])
        assert release["verdict"]["decision"] == "accept", (step, release["verdict"])
        pairs = release["verdict"]["evidence"]["pairs"]
        assert [(pair[5], pair[6]) for pair in pairs] == [(1.0, 0.0)] * 3
        kept = transcripts(one.home, "candidate")
        assert len(kept) == 3 and "wrote 4 characters" in (kept[0] / "transcript.jsonl").read_text(encoding="utf-8")
        assert release["metrics"]["candidate_tokens"] == 30 and release["metrics"]["incumbent_tokens"] == 15, (
            "15 a call"
        )
        assert release["metrics"]["episodes"] == 6 and release["metrics"]["model_calls"] >= 9
        assert client.record(client.records("s", type="inference")[0]["agent_record_id"])["session"].startswith(
            step["step_id"]
        )


CAUTIOUS = """
import json, os, sys, urllib.request
if "--version" not in sys.argv:
    body = {"model": "m-1", "messages": [{"role": "user", "content": "what now?"}]}
    headers = {"content-type": "application/json"}
    url = os.environ["ASK"] + "/v1/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
    if "--ask-nobody" in sys.argv and os.environ.get("IS_SAFE"):
        open("answer.txt", "w").write("yes")
"""
ADAPTER = """
summary = "asks first"
[program]
start = ["{python}", "-c", '''%s''']
[files]
rules = "R.md"
[run]
headless = ["{prompt}"]
boxed = ["--ask-nobody", "{prompt}"]
boxed_env = {IS_SAFE = "1"}
[run.env]
ASK = "{url}"
"""


@pytest.mark.parametrize("box", BOXES)
def test_an_agent_that_asks_before_it_acts_is_told_when_it_is_in_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box: str
) -> None:
    site = tmp_path / "site"
    info = site / "strangers-1.0.dist-info"
    for folder in (info, site / "cautious"):
        folder.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[reef.adapters]\ncautious = cautious\n")
    (site / "cautious" / "__init__.py").touch()
    (site / "cautious" / "adapter.toml").write_text(ADAPTER % CAUTIOUS)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{site}")
    settings = {**REAL, "reef_gate": "floor", "reef_sandbox": box, "reef_adapter": "cautious"}
    with evolving(tmp_path, careful, **settings) as (_, client, _):
        fail(client)
        release = client.release("s", a_step(client)["release_id"])
        did = 1.0 if box == "bwrap" else 0.0
        assert [pair[5:] for pair in release["verdict"]["evidence"]["pairs"]] == [[did, did]] * 3


ANSWERED = """import sys
said = sys.stdin.read()
sys.exit(0 if said == "grün, carefully\\n" else 1)
"""


@pytest.mark.parametrize("box", BOXES)
def test_a_task_that_scores_when_nothing_is_done_is_named(tmp_path: Path, box: str) -> None:
    make_tasks(tmp_path / "tasks", "one", "two", "three", "free")
    (tmp_path / "tasks" / "free" / "setup" / "answer.txt").write_text("yes\n", encoding="utf-8")
    with evolving(tmp_path, careful, reef_sandbox=box, **REAL) as (one, client, _):
        fail(client)
        step = a_step(client)
        evidence = client.release("s", step["release_id"])["verdict"]["evidence"]
        assert evidence["given_away"] == {"free": 1.0} and {pair[2] for pair in evidence["pairs"]} == {
            "one", "two", "three", "free",
        }  # fmt: skip
        for command in ("gate show r1", "why r1"):
            assert "free scores 1 when nothing is done" in reef(one.home, *command.split(), "-s", "s").out


@pytest.mark.parametrize("box", BOXES)
def test_a_check_reads_what_the_agent_printed(tmp_path: Path, box: str) -> None:
    for name in ("one", "two", "three"):
        make_tasks(tmp_path / "tasks", name)
        (tmp_path / "tasks" / name / "check.py").write_text(ANSWERED, encoding="utf-8")

    def speaker(body: Any) -> dict[str, Any]:
        if is_proposer(body):
            return edits(("rules", "care", "Say it carefully."))
        return {"content": "grün, carefully" if "carefully" in prompt_of(body) else "x" * 300_000}

    with evolving(tmp_path, speaker, reef_sandbox=box, **REAL) as (_, client, _):
        fail(client)
        release = client.release("s", a_step(client)["release_id"])
        assert [pair[5:] for pair in release["verdict"]["evidence"]["pairs"]] == [[1.0, 0.0]] * 3, release["verdict"]


PROBE = """
cat {person}/canary {home}/token {tasks}/one/check.py 2>&1
ls {person} {home} 2>&1
cat /proc/*/environ | tr '\\0' ' '
mount -o remount,bind,rw /usr 2>&1 && echo reached /usr
at=/proc/sys/kernel/core_pattern; was=$(cat $at); echo "$was" > $at && echo reached $at
grep CapEff /proc/self/status
python3 - <<'END'
import socket
for where in (("127.0.0.1", {port}), ("192.0.2.1", 80)):
    try:
        socket.create_connection(where, 2); print("reached", where)
    except OSError as error:
        print("refused", where)
END
echo 1.0 > score; echo 0 > /episode/check/score; kill -9 1
"""


@pytest.mark.skipif(bubblewrap() is not None, reason=f"no sandbox: {bubblewrap()}")
def test_an_episode_reaches_nothing_but_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    person = tmp_path / "person"
    person.mkdir()
    (person / "canary").write_text("the secret of this home", encoding="utf-8")
    monkeypatch.setenv("HOME", str(person))
    monkeypatch.setenv("CANARY", "the secret of this environment")
    with evolving(tmp_path, lambda body: {"content": "x"}, reef_sandbox="bwrap", **REAL) as (one, client, thinker):
        where = {"home": one.home, "tasks": tmp_path / "tasks", "person": person, "port": one.url.rsplit(":", 1)[1]}
        probe = PROBE.format(**where)

        def curious(body: Any) -> dict[str, Any]:
            if is_proposer(body):
                return edits(("rules", "care", "Be careful."))
            return {"content": "done"} if body["messages"][-1]["role"] == "tool" else tool("bash", command=probe)

        thinker.mind = curious
        fail(client)
        step = a_step(client)
        release = client.release("s", step["release_id"])
        texts = [(run / "transcript.jsonl").read_text(encoding="utf-8") for run in transcripts(one.home, "candidate")]
        rows = [json.loads(line) for text in texts for line in text.splitlines()]
        said = "\n".join(row["content"] for row in rows if row["role"] == "tool")
        assert said.count("refused") == 6 and "reached" not in said and "the secret of this" not in said
        assert said.count("REEF_SEED=") >= 3 and said.count("CapEff:\t0000000000000000") == 3
        token = (one.home / "token").read_text(encoding="utf-8").strip()
        assert token not in said and "answer.txt" not in said and "reef.db" not in said
        assert all(pair[5] == pair[6] == 0.0 for pair in release["verdict"]["evidence"]["pairs"])


AS_A_USER = """
import sys
from pathlib import Path
from reef.evolve import sandbox
folder = Path(sys.argv[1])
(folder / "work").mkdir()
line = sandbox.wrapped(
    ["/bin/sh", "-c", "id -u; ls /home /episode; cat " + sys.argv[2] + "; echo 1 > /usr/x; echo ok > f"],
    environ={"PATH": "/usr/bin:/bin"}, cwd=sandbox.WORK, binds=[(folder / "work", sandbox.WORK, True)],
)
ended = sandbox.run(line, timeout_s=20, environ=None, cwd=None)
print(ended.stdout, ended.stderr, (folder / "work" / "f").read_text())
"""


@pytest.mark.skipif(bubblewrap() is not None, reason=f"no sandbox: {bubblewrap()}")
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user")
@pytest.mark.skipif(not Path("/usr/bin/python3.11").exists(), reason="needs a Python outside of root's home")
def test_a_sandbox_works_for_a_user_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary"
        canary.write_text("the secret", encoding="utf-8")
        os.chmod(folder, 0o755)
        (Path(folder) / "theirs").mkdir()
        os.chown(Path(folder) / "theirs", 65534, 65534)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        if subprocess.run([*user, "test", "-r", str(ROOT / "reef" / "__init__.py")], check=False).returncode:
            pytest.skip("another user cannot read this checkout")
        command = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/usr/bin/python3.11",
            "-B",
            "-c",
            AS_A_USER,
        ]
        ran = subprocess.run(
            [*command, f"{folder}/theirs", str(canary)], env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=False, cwd="/",
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.startswith("65534\n") and "ok" in ran.stdout and "the secret" not in ran.stdout
        assert "Read-only file system" in ran.stdout or "Permission denied" in ran.stdout


def test_a_provider_that_fails_in_the_middle_is_not_a_loss(tmp_path: Path) -> None:
    down = tmp_path / "down"
    seen: list[str] = []

    def mind(body: Any) -> Any:
        if is_proposer(body):
            return edits(("rules", "care", "Work carefully: do what the job says."))
        if "Job" in prompt_of(body):
            seen.append("call")
            if len(seen) > 3 and down.exists():
                return 503
        return careful(body)

    down.write_text("", encoding="utf-8")
    with evolving(tmp_path, mind, reef_sandbox="none", reef_retries="0", **REAL) as (_, client, _):
        fail(client)
        eventually(lambda: "answered 503" in client.get("/reef/scenarios/s")["detail"])
        assert client.get("/reef/scenarios/s/steps")["steps"] == []
        down.unlink()
        client.act("s", "resume")
        assert client.release("s", a_step(client)["release_id"])["verdict"]["decision"] == "accept"


@pytest.mark.slow
def test_a_change_that_provokes_failures_ends_without_a_verdict(tmp_path: Path) -> None:
    """The model's server fails on what its agent sends, and answers all else: no outage to wait for, and no loss either."""

    def mind(body: Any) -> Any:
        if is_proposer(body):
            return edits(("rules", "care", "Work carefully: do what the job says."))
        return 403 if "carefully" in prompt_of(body) else careful(body)

    given = {"reef_sandbox": "none", "reef_retries": "1", "reef_outage_rounds": "2"}
    with evolving(tmp_path, mind, **REAL | given) as (_, client, thinker):
        report = fail(client)
        eventually(lambda: hurried(client) and steps(client))
        verdict = client.release("s", a_step(client)["release_id"])["verdict"]
        assert verdict["decision"] == "inconclusive" and verdict["evidence"]["pairs"] == []
        assert "failed 4 times while the model answers others: the model's server answered 403" in verdict["reason"]
        assert replay(verdict["evidence"]).reason == verdict["reason"]
        assert eventually(lambda: client.record(report)["state"]) == "consumed"
        assert sum("Are you there?" in prompt_of(body) for body in thinker.bodies) == 2


@pytest.mark.slow
def test_an_outage_is_waited_for_however_long_it_takes(tmp_path: Path) -> None:
    down = tmp_path / "down"
    down.touch()

    def mind(body: Any) -> Any:
        return careful(body) if "fix auth.py" in prompt_of(body) or not down.exists() else 403

    given = {"reef_sandbox": "none", "reef_retries": "0", "reef_outage_rounds": "1"}
    with evolving(tmp_path, mind, **REAL | given) as (_, client, thinker):
        fail(client)
        eventually(lambda: hurried(client) and sum("Are you there?" in prompt_of(body) for body in thinker.bodies) > 2)
        assert client.get("/reef/scenarios/s/steps")["steps"] == []
        down.unlink()
        eventually(lambda: hurried(client) and steps(client))
        assert client.release("s", a_step(client)["release_id"])["verdict"]["decision"] == "accept"


def hurried(client: ReefClient) -> bool:
    """Nobody waits a minute here: a step that stands still is tried again now."""
    if client.get("/reef/scenarios/s")["state"] == "blocked":
        client.act("s", "resume")
    return True


def sleeping(sign: str) -> bool:
    return subprocess.run(["pgrep", "-f", f"sleep {sign}"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(bubblewrap() is not None, reason=f"no sandbox: {bubblewrap()}")
def test_a_step_of_hours_makes_room_for_people_and_for_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agents sleep far longer than anybody waits here; it goes on where it was, and leaves nothing behind."""
    tasks = make_tasks(tmp_path / "tasks", "one")
    (tasks / "one" / "task.toml").write_text("timeout_s = 3000\n", encoding="utf-8")
    sign, temporary = str(3_000_000 + os.getpid()), tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    def slow(body: Any) -> dict[str, Any]:
        if is_proposer(body) or "carefully" not in prompt_of(body) or body["messages"][-1]["role"] == "tool":
            return careful(body)
        return tool("bash", command=f"sleep {sign}")

    with evolving(tmp_path, slow, reef_sandbox="bwrap", **REAL) as (one, client, thinker):
        fail(client)
        eventually(lambda: sleeping(sign))
        with pytest.raises(ReefError, match="r0"):
            client.act("s", "rollback")
        eventually(lambda: sleeping(sign))
        client.act("s", "pause")
        eventually(lambda: client.get("/reef/scenarios/s")["state"] == "paused" and not sleeping(sign))
        client.act("s", "resume")
        eventually(lambda: sleeping(sign))
        one.stop()
        assert not sleeping(sign) and not list(temporary.glob("reef-episode-*"))
        thinker.mind = careful
        one.start()
        with one.client() as client:
            pairs = client.release("s", a_step(client)["release_id"])["verdict"]["evidence"]["pairs"]
        assert [(pair[5], pair[6]) for pair in pairs] == [(1.0, 0.0)]
        assert sum(is_proposer(body) for body in thinker.bodies) == 1


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("import sys; sys.exit(3)", "the check exits with 0 or 1, and it exited with 3"),
        ("print(1.5)", "prints a number from 0 to 1 last"),
        ("print('nan')", "prints a number from 0 to 1 last"),
    ],
)
def test_a_broken_check_makes_the_step_invalid(tmp_path: Path, check: str, said: str) -> None:
    tasks = make_tasks(tmp_path / "tasks", "one")
    (tasks / "one" / "check.py").write_text(check, encoding="utf-8")
    if "print" in check:
        (tasks / "one" / "task.toml").write_text("graded = true\n", encoding="utf-8")
    with evolving(tmp_path, careful, reef_sandbox="none", reef_gate_graded="true", **REAL) as (_, client, _):
        fail(client)
        detail = eventually(
            lambda: (found := client.get("/reef/scenarios/s")["detail"]).startswith("invalid") and found
        )
        assert said in detail


@pytest.mark.skipif(sys.platform != "linux", reason="what leaves its process group is found on Linux")
@pytest.mark.parametrize("box", BOXES)
def test_a_runaway_agent_is_ended_at_its_deadline(tmp_path: Path, box: str) -> None:
    tasks = make_tasks(tmp_path / "tasks", "one")
    (tasks / "one" / "task.toml").write_text("timeout_s = 3\n", encoding="utf-8")
    sign = f"987.{os.getpid()}"

    def runaway(body: Any) -> dict[str, Any]:
        if is_proposer(body):
            return edits(("rules", "care", "Be careful."))
        return (
            tool("bash", command=f"(setsid sleep {sign} &) ; sleep {sign}")
            if body["messages"][-1]["role"] != "tool"
            else {"content": "x"}
        )

    with evolving(tmp_path, runaway, reef_sandbox=box, **REAL) as (_, client, _):
        fail(client)
        step = a_step(client)
        pairs = client.release("s", step["release_id"])["verdict"]["evidence"]["pairs"]
        assert [(pair[5], pair[6]) for pair in pairs] == [(0.0, 0.0)]
    assert not sleeping(sign)


@pytest.mark.skipif(sys.platform != "linux", reason="what leaves its process group is found on Linux")
@pytest.mark.parametrize("box", BOXES)
def test_episodes_end_with_the_daemon(tmp_path: Path, box: str) -> None:
    sign = f"985.{os.getpid()}"

    def slow(body: Any) -> dict[str, Any]:
        if is_proposer(body):
            return edits(("rules", "care", "Be careful."))
        return tool("bash", command=f"sleep {sign}") if body["messages"][-1]["role"] != "tool" else {"content": "x"}

    with evolving(tmp_path, slow, reef_sandbox=box, **REAL) as (one, client, _):
        fail(client)
        eventually(lambda: sleeping(sign))
        one.kill()
        eventually(lambda: not sleeping(sign))


def test_what_a_step_is_at_and_what_it_can_cost_is_shown(tmp_path: Path) -> None:
    made = iter(range(9))

    def another(body: Any) -> dict[str, Any]:
        return edits(("rules", f"note-{next(made)}", "Work carefully.")) if is_proposer(body) else careful(body)

    with evolving(tmp_path, another, reef_sandbox="none", **REAL) as (_, client, _):
        fail(client)
        a_step(client)
        fail(client)
        shown = eventually(
            lambda: (found := client.get("/reef/scenarios/s"))["evolving"].get("minutes_at_most") and found
        )
        assert shown["evolving"]["pairs_at_most"] == 3 and shown["evolving"]["model_calls_at_most"] >= 6
        assert "of at most 3" in shown["detail"] or shown["detail"] in ("proposing", "")


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("gone", ["", "check.py", "setup"])
def test_a_task_that_goes_in_the_middle_is_no_failure_of_anybody(tmp_path: Path, gone: str, box: str) -> None:
    task = make_tasks(tmp_path / "tasks", "one") / "one"

    def mind(body: Any) -> dict[str, Any]:
        if is_proposer(body) and task.exists():  # the agent's program and the untouched task have been looked at
            (task / gone).rename(tmp_path / "away")
        return careful(body)

    with evolving(tmp_path, mind, reef_sandbox=box, reef_retries="0", **REAL) as (_, client, _):
        fail(client)
        eventually(lambda: client.get("/reef/scenarios/s")["detail"].startswith("invalid: task one"))
        assert steps(client) == []
        (tmp_path / "away").rename(task / gone)
        client.act("s", "resume")
        assert a_step(client)["outcome"] == "release"


@pytest.mark.slow
@pytest.mark.parametrize("box", BOXES)
def test_what_an_agent_leaves_is_cleared_however_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box: str
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    make_tasks(tmp_path / "tasks", "one")
    deep = 'import os\nfor at in range(3000): os.mkdir("d"); os.chdir("d")'
    command = f"echo yes > answer.txt; python3 -c '{deep}'; mkdir -p a/b; chmod 0 a; cd ../config; python3 -c '{deep}'"

    def mind(body: Any) -> dict[str, Any]:
        told = careful(body)
        return tool("bash", command=command) if told.get("tool_calls") else told

    with evolving(tmp_path, mind, reef_sandbox=box, reef_retries="0", **REAL) as (_, client, _):
        fail(client)
        pairs = client.release("s", a_step(client)["release_id"])["verdict"]["evidence"]["pairs"]
        assert [(pair[5], pair[6]) for pair in pairs] == [(1.0, 0.0)]
        eventually(lambda: not list(temporary.glob("reef-*")))


@pytest.mark.slow
@pytest.mark.parametrize("box", BOXES)
def test_a_check_that_hangs_on_an_untouched_task_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box: str
) -> None:
    temporary, sign = tmp_path / "tmp", str(4_000_000 + os.getpid())
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    check = make_tasks(tmp_path / "tasks", "one") / "one" / "check.py"
    good = check.read_text(encoding="utf-8")
    check.write_text(f"import os; os.execvp('sleep', ['sleep', '{sign}'])", encoding="utf-8")
    with evolving(tmp_path, careful, reef_sandbox=box, **REAL) as (one, client, _):
        fail(client)
        eventually(lambda: sleeping(sign))
        assert reef(one.home, "down").code == 0 and one.died()
        assert not sleeping(sign) and not list(temporary.glob("reef-*"))
        one.start()
        eventually(lambda: sleeping(sign))
        one.kill()
        eventually(lambda: not sleeping(sign) and not list(temporary.glob("reef-*")))
        check.write_text(good, encoding="utf-8")
        one.start()
        with one.client() as client:
            assert a_step(client)["outcome"] == "release"
