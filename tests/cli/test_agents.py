"""reef-AGENT as a user types it: install through curl, run, report, update, roll back, uninstall. Real programs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reef.harness.adapters import adapter
from reef.harness.place import Place
from reef.harness.program import start_of
from reef.harness.tree import Entry
from tests.cli.test_cli import Ran, refused, schema
from tests.daemon.test_harness import release
from tests.faults.world import ROOT
from tests.harness.world import World, fingerprint, npm_reaches, world

TASK = "Please [[run echo hello > hello.txt]]"


@pytest.fixture(scope="session")
def npm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of downloads for all tests of a session, also those of other workers."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "npm-cache"


@pytest.fixture
def here(tmp_path: Path, npm_cache: Path) -> Iterator[World]:
    with world(tmp_path, npm_cache) as one:
        yield one


def ok(ran: Ran) -> Ran:
    assert ran.code == 0, ran.out + ran.err
    return ran


def next_release(here: World, text: str, *more: Entry) -> None:
    """The daemon goes down, a new harness is put behind the head, it comes up on another port."""
    here.daemon.stop()
    release(here.daemon, "default", text, *more)
    here.daemon.start()


def story(
    here: World, name: str, headless: tuple[str, ...], *, transcripts: str, upgraded: bool = False, **environ: str
) -> None:
    """The whole path of one agent; what lies outside of Reef's directory never changes."""
    before = fingerprint(here.home)
    refused(here.agent(name, *headless, TASK), 4, f"{name} is not installed", f"reef harness install {name}")
    first = ok(here.curl_install(name))
    assert f"installed {name}" in first.err and here.token not in first.out + first.err
    place = Place(here.agents, name, "default")
    mtimes = {path: path.stat().st_mtime_ns for path in place.root.rglob("*") if path.name != ".lock"}
    assert f"already current: {name}" in ok(here.curl_install(name)).err
    assert mtimes == {path: path.stat().st_mtime_ns for path in place.root.rglob("*") if path.name != ".lock"}
    refused(here.agent(name, "report", "--score", "0"), 4, "has not been run in this folder")

    ran = ok(here.agent(name, *headless, TASK, **environ))
    assert "done" in ran.out and (here.project / "hello.txt").read_text() == "hello\n"
    with here.daemon.client("default") as client:
        calls = [row for row in client.records("default", type="inference") if not row["meta"].get("helper")]
        assert len(calls) >= 2 and {row["release_id"] for row in calls} == {"r0"}
        sessions = {row["session"] for row in calls}
        assert len(sessions) == 1, "one run, one session"
        assert all(here.token not in client.request_bytes(row["agent_record_id"]).decode() for row in calls)
        said = schema(
            here.agent(name, "report", "--score", "0", "--feedback", "missed the empty case", "--json"), "report"
        )
        assert set(said["references"]) == {row["agent_record_id"] for row in calls} and said["session"] in sessions
    programs = here.agents / "programs"
    if upgraded:
        programs.rename(programs.with_name("away"))  # as after an upgrade, which pins another version
        ran = ok(here.agent(name, *headless, TASK, **environ))
        assert "installing" in ran.err and programs.is_dir()
        shutil.rmtree(programs.with_name("away"))
    other = here.home / "with space"
    moved = World(here.home, other, here.daemon, here.model, here.cache)
    refused(moved.agent(name, "report", "--score", "1"), 4, "in this folder")

    kept = [path for path in place.root.glob(transcripts) if path.is_file()]
    assert kept, "the agent's own record of the run"
    next_release(here, "Say MARK-second.\n")
    assert "+Say MARK-second." in ok(here.agent(name, "diff")).out
    again = ok(here.agent(name, *headless, TASK, **environ))
    assert "is on r1 now (was r0)" in again.err and "MARK-second" in again.out
    assert all(path.is_file() for path in kept), "sessions survive an update"
    ok(here.agent(name, "rollback", "--yes"))
    assert "MARK-second" not in ok(here.agent(name, *headless, TASK, **environ)).out
    assert all(path.is_file() for path in kept), "and a rollback"
    shown = schema(here.agent(name, "status", "--json"), "harness")
    assert (shown["release_id"], shown["served"], shown["edited"], shown["program"]) == ("r2", "r2", [], "ready")
    assert schema(here.agent(name, "versions", "--json"), "versions")["installed"] == "r2"

    here.daemon.stop()
    refused(here.agent(name, *headless, TASK), 3, "no daemon answers at", "reef up")
    gone = schema(here.agent(name, "uninstall", "--json"), "uninstall")
    assert gone["kept"] and not any(one in gone["kept"] for one in ("manifest.json", "binding.json"))
    assert not (here.agents / "programs").exists() and all(path.is_file() for path in kept)
    assert fingerprint(here.home) == before, "nothing outside of Reef's directory changed"


@pytest.mark.slow
def test_minimal_from_nothing_to_uninstall(here: World) -> None:
    story(here, "minimal", ("-p",), transcripts="config/sessions/*.jsonl")


@pytest.mark.slow
def test_pi_from_nothing_to_uninstall(here: World) -> None:
    """The real pi from npm, with a Node.js it can run on."""
    if (why := npm_reaches("@earendil-works/pi-coding-agent@1.6.0", here.cache)) is not None:
        pytest.skip(why)
    story(here, "pi", ("-p",), transcripts="config/sessions/*/*.jsonl")


def test_input_exit_code_and_words_are_the_agents_own(here: World) -> None:
    ok(here.install("minimal"))
    ran = ok(here.agent("minimal", stdin=f"{TASK}\n\nand [[run cat hello.txt]]\n"))
    assert ran.out == "done\ndone\n"
    last = schema(here.agent("minimal", "report", "--score", "1", "--json"), "report")
    assert len(last["references"]) == 4, "all calls of the run"
    refused(here.agent("minimal", "--wrong"), 2, "reef-minimal", "--wrong")
    reached = ok(here.agent("minimal", "--", "report"))
    assert reached.out.startswith("done"), "a word of Reef's is a prompt behind --"
    ran = ok(here.agent("minimal", "--help"))
    assert "report" in ran.err and "usage: reef-minimal" in ran.out
    assert ok(here.reef("agent", "minimal", "-p", "hello")).out == "done\n"
    assert ok(here.reef("agent", "minimal", "--", "report", "-p", "hello")).out == "done\n"
    script = "import sys; sys.argv[0] = '/b/reef-minimal'; from reef.cli.agent import main; main()"
    assert ok(here.run(sys.executable, "-c", script, "-p", "hello")).out == "done\n"
    with here.daemon.client() as client:
        assert len({row["session"] for row in client.records("default", type="inference")}) == 5
    refused(here.agent("minimal", "report"), 2, "a report needs a score or feedback")
    refused(here.agent("minimal", "report", "--score", "1", "--session", "no-such"), 4, "made no model call")


@pytest.mark.parametrize("tools", [["read"], []])
def test_minimal_has_the_tools_that_its_settings_name(tmp_path: Path, npm_cache: Path, tools: list[str]) -> None:
    seed = tmp_path / "seed"
    (seed / "config").mkdir(parents=True)
    (seed / "config" / "minimal.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "touch it"}'}}

    def mind(body: Any) -> dict[str, Any]:
        return {"content": "done"} if body["messages"][-1]["role"] == "tool" else {"content": "", "tool_calls": [call]}

    with world(tmp_path, npm_cache, reef_seed=str(seed)) as here:
        here.model.mind = mind
        ok(here.install("minimal"))
        ok(here.agent("minimal", "-p", "touch it"))
        first, second = here.model.bodies[-2:]
        assert [tool["function"]["name"] for tool in first.get("tools", [])] == tools and first.get("tools") != []
        assert "there is no tool 'bash'" in second["messages"][-1]["content"]
        assert not (here.project / "it").exists()
        place = Place(here.agents, "minimal", "default")
        (place.config / "settings.json").write_text('{"tools": ["shell"]}', encoding="utf-8")
        refused(here.agent("minimal", "-p", "touch it"), 1, "there is no 'shell'", "bash")


def test_a_change_is_asked_for_where_the_recipe_makes_some(here: World) -> None:
    ok(here.install("minimal"))
    refused(here.agent("minimal", "harness", "check your work"), 1, "evolves no harness", "--recipe evolve")


def test_which_install_is_meant_and_what_is_gone_is_said(here: World) -> None:
    assert "REEF_SCENARIO=" not in ok(here.install("minimal")).err
    assert "start it with: REEF_SCENARIO=other " in ok(here.install("minimal", "-s", "other")).err
    ok(here.agent("minimal", "uninstall", "-s", "other"))
    here.daemon.stop()
    with socket.socket() as held:  # nobody else's daemon can have the port meanwhile
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", int(here.daemon.url.rpartition(":")[2])))
        said = ok(here.agent("minimal", "status")).err
    assert "no daemon answers at" in said and "reef up" in said
    assert "uninstalled minimal for default" in ok(here.agent("minimal", "uninstall")).err


def test_a_run_goes_on_where_the_last_one_ended(here: World) -> None:
    ok(here.install("minimal"))
    ok(here.agent("minimal", "-p", "first MARK-one"))
    assert "MARK-one" in ok(here.agent("minimal", "--continue", "-p", "second")).out


def test_the_users_edit_is_kept_and_said(here: World) -> None:
    ok(here.install("minimal"))
    rules = here.agents / "minimal" / "default" / "config" / "rules" / "base.md"
    rules.write_text("Always MARK-mine.\n")
    next_release(here, "Say MARK-second.\n")
    ran = ok(here.agent("minimal", "-p", "hello"))
    assert "kept your rules/base.md" in ran.err and ran.out == "done MARK-mine\n"
    assert "MARK-second" in rules.with_name("base.md.reef-new").read_text()
    shown = schema(here.agent("minimal", "status", "--json"), "harness")
    assert shown["edited"] == ["rules/base.md"]
    ok(here.agent("minimal", "uninstall"))
    assert rules.read_text() == "Always MARK-mine.\n" and not rules.with_name("base.md.reef-new").exists()


def test_what_cannot_be_installed_says_why(here: World, tmp_path: Path) -> None:
    url = here.daemon.url
    refused(here.reef("harness", "install", "clade", "--url", url), 4, "no adapter 'clade'", "did you mean claude?")
    refused(here.reef("harness", "install", "pi", "--url", url, REEF_TOKEN=""), 2, "REEF_TOKEN is not set")
    refused(here.reef("harness", "install", "pi", "--url", url, REEF_TOKEN="wrong"), 1, "no token, or a wrong one")
    refused(here.reef("harness", "install", "pi", "--url", "http://127.0.0.1:9"), 3, "no answer from")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "env"):
        (tools / name).symlink_to(str(shutil.which(name)))
    refused(here.reef("harness", "install", "pi", "--url", url, PATH=str(tools)), 1, "npm is needed", "minimal")
    cut_off = {
        "npm_config_registry": "http://127.0.0.1:9/",
        "npm_config_fetch_retries": "0",
        "REEF_NPM_CACHE": str(tmp_path / "c"),
    }
    refused(here.reef("harness", "install", "claude", "--url", url, **cut_off), 1, "npm could not reach its registry")
    assert schema(here.reef("harness", "adapters", "--json"), "adapters")["adapters"][2]["installed_for"] == []


def test_a_daemon_that_names_no_model(tmp_path: Path, npm_cache: Path) -> None:
    with world(tmp_path, npm_cache) as here:
        here.daemon.stop()
        del here.daemon.settings["reef.upstream_model"]
        here.daemon.start()
        refused(here.install("minimal"), 2, "names no model", "--model")
        ok(here.install("minimal", "--model", "m-9"))
        ok(here.agent("minimal", "-p", "hello"))
        assert here.model.bodies[-1]["model"] == "m-9"
        here.daemon.stop()
        here.daemon.settings["reef.upstream_model"] = "m-2"
        here.daemon.start()
        ok(here.install("minimal"))
        ok(here.agent("minimal", "-p", "hello"))
        assert here.model.bodies[-1]["model"] == "m-2", "installing again takes the deployment's model"


def test_the_model_sees_tools_errors_and_limits(here: World) -> None:
    """Reef's own agent: what a tool refuses is told to the model, and the run ends."""
    ok(here.install("minimal"))
    ok(here.agent("minimal", "-p", "[[run seq 1 20000; exit 3]]"))
    shown = here.model.bodies[-1]["messages"][-1]["content"]
    assert "characters left out" in shown and "exit code 3" in shown and len(shown) < 31_000
    names = {tool["function"]["name"] for tool in here.model.bodies[-1]["tools"]}
    assert names == {"read", "write", "edit", "bash"}
    transcript = next((here.agents / "minimal" / "default" / "config" / "sessions").glob("*.jsonl"))
    assert [json.loads(line)["role"] for line in transcript.read_text().splitlines()][:2] == ["system", "user"]


def test_a_release_that_an_agent_cannot_take_does_not_stop_it(here: World) -> None:
    ok(here.install("minimal"))
    next_release(here, "Say MARK-second.\n", Entry("config", "minimal", '{"url": "http://evil.test"}'))
    ran = ok(here.agent("minimal", "-p", "hello"))
    assert ran.out == "done\n" and "staying on r0: config/minimal sets 'url'" in ran.err
    with here.daemon.client("default") as client:
        assert client.records("default", type="inference")[0]["release_id"] == "r0"
    refused(here.agent("minimal", "update"), 2, "which a harness may not")


def test_runs_that_start_at_once_update_one_after_the_other(here: World) -> None:
    ok(here.install("minimal"))
    next_release(here, "Say MARK-second.\n")
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: here.agent("minimal", "-p", "hello"), range(4)))
    assert [(ran.code, ran.out) for ran in runs] == [(0, "done MARK-second\n")] * 4, runs
    assert sum("is on r1 now" in ran.err for ran in runs) == 1


def test_a_token_that_has_changed_is_found_or_asked_for(here: World) -> None:
    ok(here.install("minimal"))
    ok(here.curl_install("minimal"))
    here.daemon.stop()
    here.daemon.settings["reef.token"] = "another-token-for-today"
    here.daemon.start()
    ok(here.agent("minimal", "-p", "hello", REEF_TOKEN=""))
    refused(
        here.agent("minimal", "-p", "hello", REEF_TOKEN="stale-token"), 1, "takes another token", "export REEF_TOKEN"
    )
    kept = json.loads((here.agents / "minimal" / "default" / "binding.json").read_text())
    assert kept["token"] == "another-token-for-today"


def test_an_adapter_of_a_stranger_comes_through_the_same_door(here: World, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("echoing", "broken"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
    info = site / "strangers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[reef.adapters]\necho = echoing\nbroken = broken\nabsent = no.such.package\n"
    )
    (site / "broken" / "adapter.toml").write_text("[")
    (site / "echoing" / "adapter.toml").write_text(
        'summary = "says what it is given"\n[program]\nstart = ["{python}", "-m", "echoing.say"]\n[files]\nrules = "R.md"\n'
        '[run.env]\nECHO_DIR = "{config}"\nECHO_MODEL = "{model}"\nPYTHONPATH = "' + str(site) + '"\n'
    )
    (site / "echoing" / "say.py").write_text(
        "import os, sys\nprint(open(os.environ['ECHO_DIR'] + '/R.md').read()[:4], os.environ['ECHO_MODEL'], sys.argv[1:])\n"
    )
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}
    home = ("--home", str(here.daemon.home))
    ran = here.reef("harness", "adapters", **path)
    assert ran.code == 0 and "says what it is given" in ran.out and "broken" in ran.err and "no.such" in ran.err
    ok(here.reef("harness", "install", "echo", *home, **path))
    assert ok(here.agent("echo", "a", "--b", **path)).out == "Read m-1 ['a', '--b']\n"


def test_wrap_asks_shows_no_token_and_gives_every_byte_back(here: World) -> None:
    before, home = fingerprint(here.home), ("--home", str(here.daemon.home))
    ran = here.reef("wrap", "claude", *home)
    assert ran.code == 2 and "add --yes" in ran.err and fingerprint(here.home) == before
    assert "+  " in ran.err and "ANTHROPIC_BASE_URL" in ran.err and here.token not in ran.err
    ok(here.reef("wrap", "claude", "--yes", *home))
    assert here.daemon.url in (here.home / ".claude" / "settings.json").read_text()
    assert "already" in ok(here.reef("wrap", "claude", "--yes", *home)).err
    refused(
        here.reef("wrap", "claude", "--scenario", "other", "--yes", *home), 1, "wrapped already", "reef unwrap claude"
    )
    assert "to the byte" in ok(here.reef("unwrap", "claude")).err
    assert fingerprint(here.home) == before
    refused(here.reef("unwrap", "claude"), 4, "claude is not wrapped")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pi", ("-p",)),
        ("claude", ("-p", "--permission-mode", "acceptEdits", "--allowedTools", "Bash", "--")),
        ("codex", ("exec", "--skip-git-repo-check", "-s", "danger-full-access")),
        ("opencode", ("run", "--auto")),
    ],
    ids=["pi", "claude", "codex", "opencode"],
)
def test_a_wrapped_agent_of_ones_own_calls_through_reef(here: World, name: str, words: tuple[str, ...]) -> None:
    """The real programs, started as their owner starts them."""
    one = adapter(name)
    if (why := npm_reaches(f"{one.program.package}@{one.program.version}", here.cache)) is not None:
        pytest.skip(why)
    (here.home / one.wrap.folder / "settings.json").write_text("{}")
    here.cache.mkdir(exist_ok=True)
    ok(here.install(name))
    start = start_of(here.agents, one)
    ok(here.reef("wrap", name, "--yes", "--scenario", "own", "--home", str(here.daemon.home)))
    assert "done" in ok(here.run(*start, *words, TASK, PWD=str(here.project))).out
    assert (here.project / "hello.txt").exists()
    with here.daemon.client("own") as client:
        assert len(client.records("own", type="inference")) >= 2
    ok(here.reef("unwrap", name))
    assert (here.home / one.wrap.folder / "settings.json").read_text() == "{}"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "package", "headless", "transcripts", "environ"),
    [
        (
            "claude", "@anthropic-ai/claude-code@2.1.332",
            ("-p", "--permission-mode", "acceptEdits", "--allowedTools", "Bash", "--"), "config/projects/*/*.jsonl", {},
        ),
        (
            "codex", "@openai/codex@0.171.0", ("exec", "--skip-git-repo-check", "-s", "danger-full-access"),
            "config/sessions/*/*/*/rollout-*.jsonl", {},
        ),
        ("opencode", "opencode-ai@1.18.33", ("run", "--auto"), "data/data/opencode/opencode.db", {}),
    ],
    ids=["claude", "codex", "opencode"],
)  # fmt: skip
def test_other_agents_from_nothing_to_uninstall(
    here: World, name: str, package: str, headless: tuple[str, ...], transcripts: str, environ: dict[str, str]
) -> None:
    """Real programs of 350 to 430 MB each."""
    if (why := npm_reaches(package, here.cache)) is not None:
        pytest.skip(why)
    story(here, name, headless, transcripts=transcripts, upgraded=True, **environ)
