"""The train child: makes steps and exports, one at a time, asked and answered in JSON lines on stdin and stdout.

A request is ``{"id", "verb": "step"|"export"|"ping", ...}``; answers are ``{"id", "result"}`` or ``{"id", "error"}``,
with ``{"id", "progress"}`` lines before. It ends when stdin ends. Started by ``TorchRuntime``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import torch
from tokenizers import Tokenizer

from reef.core.artifacts import artifact_path
from reef.errors import BadRequest, ReefError
from reef.train.torch_runtime.learner import Learner, export
from reef.train.torch_runtime.loading import pick_device
from reef.train.torch_runtime.modelfiles import model_facts
from reef.train.torch_runtime.settings import TrainSettings
from reef.train.torch_runtime.stepping import Job, make_step

log = logging.getLogger("reef.trainer")
NICENESS = 10


class Trainer:
    """Answers requests; the model is loaded with the first step."""

    def __init__(self, model: Path, home: Path, base_content_id: str, settings: TrainSettings, out: TextIO) -> None:
        self.model, self.home, self.settings = model, home, settings
        self.base_content_id = base_content_id
        self._out = out
        self._learner: Learner | None = None
        self._facts = model_facts(model)
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def answer(self, request: Mapping[str, Any]) -> None:
        """Do what ``request`` asks and write its answer; what is not a ReefError ends the process, with a traceback."""
        number = request["id"]
        try:
            result = self._do(number, request)
        except ReefError as error:
            self._write({"id": number, "error": error.as_dict()})
        except (MemoryError, torch.OutOfMemoryError) as error:
            self._learner = None
            self._write({"id": number, "result": {"outcome": "blocked", "reason": f"out of memory: {error}"}})
        else:
            self._write({"id": number, "result": result})

    def _do(self, number: int, request: Mapping[str, Any]) -> dict[str, Any]:
        match request["verb"]:
            case "ping":
                return {"pid": os.getpid()}
            case "step":
                return self._step(number, request)
            case "export":
                content_id, target = request["content_id"], Path(request["target"])
                export(self.model, self._artifact(content_id), target)
                return {"target": str(target)}
            case verb:
                raise BadRequest(f"no verb {verb!r}")

    def _artifact(self, content_id: str) -> Path | None:
        return None if content_id == self.base_content_id else artifact_path(self.home, content_id)

    def _step(self, number: int, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._learner is None:
            self._write({"id": number, "progress": {"phase": "load", "done": 0, "total": 1}})
            self._learner = Learner(self.model, self.home, self.base_content_id, self.settings)

        def progress(phase: str, done: int, total: int) -> None:
            self._write({"id": number, "progress": {"phase": phase, "done": done, "total": total}})

        job = Job(request["step_id"], request["scenario"], request["step"], request["parent"], request["payload"])
        result = make_step(self._learner, self._facts, self._tokenizer, job, progress)
        log.info("step %s of %s: %s %s", job.step, job.scenario, result["outcome"], result.get("metrics"))
        return result

    def _write(self, line: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(line, allow_nan=False) + "\n")
        self._out.flush()


def main() -> int:
    """Serve requests until stdin ends."""
    options = _options()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Libraries that print must not disturb the answers.
    os.dup2(2, 1)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    os.nice(NICENESS)
    settings = TrainSettings.from_dict(json.loads(options.settings))
    torch.set_num_threads(settings.trainer_threads)
    # Promised on the CPU; on other devices what has no deterministic form is said in the log.
    torch.use_deterministic_algorithms(True, warn_only=pick_device(settings.device).type != "cpu")
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(requests,), name="stdin", daemon=True).start()
    trainer = Trainer(Path(options.model), Path(options.home), options.base_content_id, settings, out)
    while True:
        trainer.answer(requests.get())


def _read(requests: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    # Nobody waits for the step any more; its files are in a temporary folder that the next start removes.
    os._exit(0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m reef.train.torch_runtime.trainer", description=__doc__)
    parser.add_argument("--model", required=True, help="Hugging Face folder of the base model")
    parser.add_argument("--home", required=True, help="state directory; artifacts lie below it")
    parser.add_argument("--base-content-id", required=True, help="content id of the base weights")
    parser.add_argument("--settings", default="{}", help="training settings as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
