"""A model server that seems far away: TLS ends here, and every byte is late by the one-way delay.

python -m benchmarks.far PORT UPSTREAM DELAY_S CERTIFICATE KEY
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from urllib.parse import urlsplit


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Every piece a delay later than it came, without holding up the next one."""
    loop = asyncio.get_running_loop()
    while piece := await reader.read(65536):
        loop.call_later(delay_s, writer.write, piece)
    loop.call_later(delay_s, writer.close)


async def main() -> None:
    """Serve until ended."""
    port, upstream, delay_s, certificate, key = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    address = urlsplit(upstream)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near, back = await asyncio.open_connection(address.hostname, address.port)
        await asyncio.gather(pump(reader, back, float(delay_s)), pump(near, writer, float(delay_s)))

    server = await asyncio.start_server(connection, "localhost", int(port), ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
