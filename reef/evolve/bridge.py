"""Inside a sandbox without a network: a loopback port that leads to the door's socket, and the agent as a child.

    python -m reef.evolve.bridge SOCKET PORT -- COMMAND...

Imports nothing of reef and exits with the command's code. Agents know how to call a port and not how to call a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()


async def _main(socket: str, port: int, command: list[str]) -> int:
    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(socket)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
        for one in (back, writer):
            one.close()

    async with await asyncio.start_server(join, "127.0.0.1", port):
        child = await asyncio.create_subprocess_exec(*command)
        return await child.wait()


if __name__ == "__main__":
    at = sys.argv.index("--")
    code = asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[at + 1 :]))
    sys.exit(code if code >= 0 else 128 - code)
