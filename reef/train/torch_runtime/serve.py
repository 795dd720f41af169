"""The serve child: loads a model and answers SGLang's verbs on loopback until its stdin ends.

``python -m reef.train.torch_runtime.serve --model DIR``; the key comes in REEF_ENGINE_KEY. One JSON line on stdout says
where it listens. Started by ``TorchRuntime``, by benchmarks, or by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from aiohttp import web
from tokenizers import Tokenizer

from reef.errors import BadConfig, ReefError
from reef.train.torch_runtime.engine import Engine
from reef.train.torch_runtime.loading import load_model, pick_device
from reef.train.torch_runtime.modelfiles import base_content_id, model_facts
from reef.train.torch_runtime.server import EngineServer, deliverer

log = logging.getLogger("reef.engine")


def main() -> int:
    """Run until stdin ends; returns the exit code."""
    options = _options()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    key = os.environ.get("REEF_ENGINE_KEY", "")
    try:
        if not key:
            raise BadConfig("REEF_ENGINE_KEY is not set", hint="the key guards the engine's port; any text will do")
        asyncio.run(serve(options, key))
    except ReefError as error:
        print(json.dumps({"error": error.as_dict()}), flush=True)
        return error.exit_code
    return 0


async def serve(options: argparse.Namespace, key: str) -> None:
    """Load, listen, announce, and wait for the end of stdin."""
    torch.set_num_threads(options.threads)
    folder = Path(options.model)
    facts = model_facts(folder)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(code))

    engine = Engine(
        load_model(folder, options.dtype, pick_device(options.device)),
        Tokenizer.from_file(str(folder / "tokenizer.json")),
        version=options.weight_version or base_content_id(folder),
        context=facts.context,
        stop_ids=facts.stop_ids,
        slots=options.slots,
        deliver=deliverer(loop),
        failed=lambda: end(1),
    )
    engine.start()
    runner = web.AppRunner(EngineServer(engine, folder, key).app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", options.port, reuse_address=True)
    await site.start()
    port = runner.addresses[0][1]
    log.info("serving %s on port %d with %d thread(s)", folder, port, options.threads)
    print(json.dumps({"port": port, "pid": os.getpid(), "model": str(folder)}), flush=True)
    threading.Thread(target=_watch_stdin, args=(end,), name="stdin", daemon=True).start()
    code = await ended
    # The daemon is gone or wants us gone, or the engine failed: nothing is worth waiting for.
    os._exit(code)


def _watch_stdin(end: Callable[[int], None]) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    end(0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m reef.train.torch_runtime.serve", description=__doc__)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--slots", type=int, default=16, help="requests that run at once")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--weight-version", default=None, help="name of the weights; their hash when left out")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
