"""The whole example by itself: reports, a change that wins, a change that is useless, and what both do to other questions.

    python -m examples.harness_local.run

Starts a daemon in a home of its own with the embedded model, and does what the README does by hand, with the same commands.
Prints how far it is on stderr and one JSON document on stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reef.cli.pick import EMBEDDED_MODEL, models_folder
from reef.client import ReefClient
from reef.launch import stop

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCENARIO = "board"
USELESS = {
    "why": "it sounds good",
    "edits": [{"action": "put", "kind": "rules", "name": "care", "text": "Take care to give a good answer.\n"}],
}
AT_ONCE = 4
STEP_S = 900.0


def right(answer: str, names: str) -> bool:
    """Every line is a point of a list, and the list names what it must: the checks of tasks/ in Python."""
    lines = [line for line in answer.splitlines() if line]
    points = all(re.match(r" *[*-]( |$)", line) for line in lines)
    return bool(lines) and points and re.search(names, "\n".join(lines), re.IGNORECASE) is not None


def sign_test(won: int, lost: int) -> float:
    """The chance of so many wins or more, were a win as likely as a loss."""
    n = won + lost
    return sum(math.comb(n, k) for k in range(won, n + 1)) / 2**n


def say(words: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


class Example:
    """One run, on a daemon of its own below ``folder``."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.home, self.project, self.model = folder / "reef", folder / "project", model
        self.project.mkdir(parents=True, exist_ok=True)
        self.questions: Mapping[str, list[dict[str, str]]] = tomllib.loads(
            (HERE / "questions.toml").read_text(encoding="utf-8")
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
        self.environ = {**kept, "REEF_HOME": str(self.home), "PYTHONPATH": str(ROOT)}

    def run(self) -> dict[str, Any]:
        """All of it; the daemon ends with it."""
        began = time.monotonic()
        try:
            self.reef(
                "up", "-c", str(HERE / "serve.yaml"), "--model-path", str(self.model), "--port", "0", "--yes", at=ROOT
            )
            self.reef("harness", "install", "minimal")
            with ReefClient.from_home(self.home, scenario=SCENARIO) as client:
                found = self.story(client)
        finally:
            stop(self.home, 60)
        return {**found, "seconds": round(time.monotonic() - began)}

    def story(self, client: ReefClient) -> dict[str, Any]:
        """Before, reports, after, a useless change, and after that."""
        before = self.held_out("before")
        for one in self.questions["reported"]:
            self.agent("-p", f"/answer {one['question']}")
            self.agent("report", "--score", "0", "--feedback", one["feedback"])
        say(f"reported {len(self.questions['reported'])} runs")
        learned = self.step(client, 1)
        after = self.held_out("after")
        client.post("/reef/harness/proposals", USELESS)
        say("handed in a useless change")
        useless = self.step(client, 2)
        at_last = self.held_out("at last")
        won = sum(new and not old for old, new in zip(before, after, strict=True))
        lost = sum(old and not new for old, new in zip(before, after, strict=True))
        return {
            "held_out": {"questions": len(before), "before": sum(before), "after": sum(after), "at_last": sum(at_last)},
            "won": won,
            "lost": lost,
            "p": sign_test(won, lost),
            "learned": learned,
            "useless": useless,
            "why": json.loads(self.reef("why", learned["release_id"], "--json"))["lines"],
            "serving": client.get(f"/reef/scenarios/{SCENARIO}")["release_id"],
            "harness": {f"{one['kind']}/{one['name']}": one["text"] for one in client.get("/reef/harness")["entries"]},
        }

    def held_out(self, when: str) -> list[bool]:
        """Which of the held-out questions are answered right by the agent, as it is served now."""
        asked = self.questions["held_out"]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(lambda one: self.agent("-p", f"/answer {one['question']}"), asked))
        found = [right(answer, one["names"]) for answer, one in zip(answers, asked, strict=True)]
        say(f"held out, {when}: {sum(found)} of {len(found)} right")
        return found

    def step(self, client: ReefClient, count: int) -> dict[str, Any]:
        """Wait for step number ``count``; its outcome and what the gate saw."""
        deadline, shown = time.monotonic() + STEP_S, ""
        while len(steps := client.get(f"/reef/scenarios/{SCENARIO}/steps")["steps"]) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"no step after {STEP_S:.0f} s: {client.get(f'/reef/scenarios/{SCENARIO}')}")
            detail = str(client.get(f"/reef/scenarios/{SCENARIO}")["detail"])
            if detail and detail != shown:
                say(f"  {detail}")
                shown = detail
            time.sleep(1.0)
        if steps[0]["release_id"] is None:
            raise SystemExit(f"step {count} made nothing: {steps[0]['reason']}")
        release = client.release(SCENARIO, steps[0]["release_id"])
        verdict = release["verdict"]
        pairs = [(pair[5], pair[6]) for pair in verdict["evidence"]["pairs"]]
        found = {
            "release_id": release["release_id"],
            "state": release["state"],
            "decision": verdict["decision"],
            "reason": verdict["reason"],
            "won": sum(new > old for new, old in pairs),
            "lost": sum(new < old for new, old in pairs),
            "pairs": len(pairs),
        }
        say(f"{found['release_id']} {found['state']}: {found['decision']}, {found['reason']}")
        return found

    def reef(self, *words: str, at: Path | None = None) -> str:
        """``reef WORDS``, in the project folder."""
        return self._command("reef.cli.main", *words, at=at)

    def agent(self, *words: str) -> str:
        """``reef-minimal WORDS``."""
        return self._command("reef.cli.agent", "minimal", *words)

    def _command(self, module: str, *words: str, at: Path | None = None) -> str:
        command = [sys.executable, "-m", module, *words]
        ran = subprocess.run(
            command, cwd=at or self.project, env=self.environ, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise SystemExit(f"{module} {' '.join(words)}: exit {ran.returncode}\n{ran.stderr}")
        return ran.stdout


def main() -> None:
    """Parse arguments, run, print; exit 0 when the change helped and the useless one is not served."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where it lies, and stays; default: a temporary folder")
    parser.add_argument("--model", type=Path, default=models_folder() / EMBEDDED_MODEL, help="folder of the model")
    arguments = parser.parse_args()
    if not (arguments.model / "config.json").exists():
        raise SystemExit(f"there is no model at {arguments.model}; get it with: reef model pull")
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reef-board-")))
        found = Example(folder.absolute(), arguments.model).run()
    print(json.dumps(found, indent=1))
    served = found["serving"] == found["learned"]["release_id"]
    sys.exit(0 if served and found["held_out"]["after"] > found["held_out"]["before"] else 1)


if __name__ == "__main__":
    main()
