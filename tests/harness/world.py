"""What the tests of real agents share: a daemon before a scripted model, a home with odd files, npm's cache of the session."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cli.test_cli import Ran
from tests.faults.world import ROOT
from tests.harness.model import CodingModel
from tests.support import Daemon, daemon, on_thread

DATA = ".local/share/reef"
"""Reef's own directory below a home."""


@dataclass(frozen=True)
class World:
    """A person's machine: a home, a project folder, and a daemon in front of a model."""

    home: Path
    project: Path
    daemon: Daemon
    model: CodingModel
    cache: Path

    @property
    def agents(self) -> Path:
        return self.home / DATA / "agents"

    @property
    def token(self) -> str:
        return (self.daemon.home / "token").read_text(encoding="utf-8").strip()

    def run(self, *command: str, stdin: str = "", limit_s: float = 300, **environ: str) -> Ran:
        """Run a command as this person, in the project folder."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REEF_", "XDG_"))}
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        mine = {"HOME": str(self.home), "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200", "CI": "1"}
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=limit_s, cwd=self.project, check=False,
            env={**kept, **mine, "REEF_TOKEN": self.token, "REEF_NPM_CACHE": str(self.cache), **environ},
        )  # fmt: skip
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    def reef(self, *words: str, **environ: str) -> Ran:
        """``reef WORDS``."""
        return self.run(sys.executable, "-m", "reef.cli.main", *words, **environ)

    def agent(self, name: str, *words: str, stdin: str = "", **environ: str) -> Ran:
        """``reef-NAME WORDS``."""
        return self.run(sys.executable, "-m", "reef.cli.agent", name, *words, stdin=stdin, **environ)

    def install(self, name: str, *words: str) -> Ran:
        """As ``reef harness install`` next to the daemon."""
        return self.reef("harness", "install", name, "--home", str(self.daemon.home), *words)

    def curl_install(self, name: str, **environ: str) -> Ran:
        """The readme's line."""
        url = self.daemon.url.replace("127.0.0.1", "localhost") + f"/reef/harness/install?adapter={name}"
        line = f"curl -fsS -H \"Authorization: Bearer $REEF_TOKEN\" '{url}' | bash"
        return self.run("bash", "-o", "pipefail", "-c", line, **environ)


def odd_home(home: Path) -> None:
    """Files that a careless program would trip over or change."""
    (home / ".local" / "share" / "other").mkdir(parents=True)
    (home / "Größe und Maß").mkdir()
    (home / "Größe und Maß" / "naïve 海.txt").write_text("ä\r\n", encoding="utf-8")
    (home / "with space").mkdir()
    (home / "with space" / "-rf").write_bytes(b"\xff\x00")
    (home / "dangling").symlink_to("nowhere")
    (home / "loop").symlink_to(home)
    (home / ".bashrc").write_text("alias x=y")
    for folder in (".pi/agent", ".claude", ".codex", ".config/opencode"):
        (home / folder).mkdir(parents=True)
        (home / folder / "settings.json").write_text('{"mine" :  1}')


def fingerprint(home: Path) -> dict[str, str]:
    """Everything below ``home`` but Reef's own directory: kind, mode, mtime and content."""
    found: dict[str, str] = {}
    for base, folders, files in os.walk(home):
        at = Path(base)
        if at == home / DATA:
            folders.clear()
            continue
        for path in (at / name for name in (*folders, *files)):
            if path == home / DATA:
                continue
            stat = path.lstat()
            if path.is_symlink():
                said = f"link {os.readlink(path)}"
            elif path.is_dir():
                said = f"folder {stat.st_mode}"
            else:
                said = f"file {stat.st_mode} {stat.st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"
            found[str(path.relative_to(home))] = said
    return found


@contextlib.contextmanager
def world(tmp_path: Path, cache: Path, **settings: str) -> Iterator[World]:
    """A person who has just started ``reef serve`` with a harness."""
    home, project = tmp_path / "Heim der Ünruhe", tmp_path / "ein projekt"
    home.mkdir()
    project.mkdir()
    odd_home(home)
    with (
        on_thread(CodingModel()) as model,
        daemon(
            tmp_path / "state", reef_recipe="harness", reef_upstream_url=model.url, reef_upstream_model="m-1",
            reef_upstream_api="chat", **settings,
        ) as one,
    ):  # fmt: skip
        yield World(home, project, one, model, cache)


def npm_reaches(package: str, cache: Path) -> str | None:
    """Why npm cannot fetch ``package``, None when it can."""
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm"
    ran = subprocess.run(
        [npm, "view", package, "version", "--cache", str(cache)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return None if ran.returncode == 0 and ran.stdout.strip() else f"npm reaches no registry: {ran.stderr[-200:]}"
