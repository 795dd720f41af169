"""``reef tui --web``: the door from outside, and a rollback in a real headless Chromium."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from tests.support import Daemon, eventually
from tests.tui.test_acting import served  # noqa: F401

pytest.importorskip("textual_serve")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def address(served: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: F811
    """The dashboard of ``served`` for browsers."""
    said = tmp_path_factory.mktemp("web") / "said"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
    with said.open("w") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "reef.cli.main", "tui", "--web", "--port", "0", "--home", str(served.home)],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**kept, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    try:
        found = eventually(
            lambda: child.poll() is not None or re.search(r"http://127\.0\.0\.1:\d+", said.read_text(encoding="utf-8"))
        )
        assert child.poll() is None, said.read_text(encoding="utf-8")
        yield found[0]
    finally:
        child.terminate()
        child.wait(30)
    assert token_of(served) not in said.read_text(encoding="utf-8")


def token_of(one: Daemon) -> str:
    return (one.home / "token").read_text(encoding="utf-8").strip()


def test_a_stranger_sees_nothing(served: Daemon, address: str) -> None:  # noqa: F811
    with httpx.Client(base_url=address, trust_env=False) as client:
        for path in ("/", "/ws", "/static/js/textual.js", "/download/x", "/login", "/nothing"):
            answer = client.get(path)
            assert (
                answer.status_code == 401
                and "textual-terminal" not in answer.text
                and "set-cookie" not in answer.headers
            )
        assert "Token" in client.get("/").text
        for cookie in ("x", "", "\u00fc"):
            assert (
                client.get("/static/js/textual.js", headers={"cookie": f"reef-web={cookie}".encode()}).status_code
                == 401
            )
        for wrong in ({"token": "wrong"}, {"token": ""}, {}, {"other": token_of(served)}):
            refused = client.post("/login", data=wrong)
            assert refused.status_code == 401 and "set-cookie" not in refused.headers
        assert client.get(f"/?token={token_of(served)}").status_code == 401


def test_no_other_page_and_no_other_name_gets_in(served: Daemon, address: str) -> None:  # noqa: F811
    good = {"token": token_of(served)}
    with httpx.Client(base_url=address, trust_env=False) as client:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}):
            assert client.post("/login", data=good, headers=headers).status_code == 403
        opened = client.post("/login", data=good, headers={"origin": address})
        assert opened.status_code == 303 and opened.headers["location"] == "/"
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and good["token"] not in cookie
        page = client.get("/")
        assert "textual-terminal" in page.text and "googleapis" not in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
        assert client.get("/ws", headers={"origin": "https://evil.example"}).status_code == 403
        assert client.get("/", headers={"host": "evil.example"}).status_code == 403


class Browser:
    """A page of Chromium over its debugging protocol, and what its terminal was sent."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self.drawn = ""

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for one thing."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            if (found := await self._next()).get("id") == self._number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result

    async def until(self, check: Callable[[], Any]) -> None:
        """Read what comes until it is so."""
        while not check():
            await self._next()

    async def until_page(self, script: str) -> None:
        """Until the page says so."""
        while not (await self.do("Runtime.evaluate", expression=script))["result"].get("value"):
            pass

    async def type(self, text: str) -> None:
        """Press keys, one a letter."""
        for one in text:
            await self.do("Input.dispatchKeyEvent", type="char", text=one)

    async def _next(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._socket.receive_json(timeout=60)
        if found.get("method") == "Network.webSocketFrameReceived":
            frame = found["params"]["response"]
            data = frame["payloadData"]
            raw = base64.b64decode(data).decode("utf-8", "replace") if frame["opcode"] == 2 else data
            self.drawn += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw)
        return found


@asynccontextmanager
async def chromium(home: Path) -> AsyncIterator[Browser]:
    """One page of a headless Chromium that talks to nobody by itself."""
    assert CHROMIUM is not None
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
             "--window-size=1200,700", f"--user-data-dir={home}")  # fmt: skip
    out = asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(CHROMIUM, *quiet, "about:blank", stdout=out, stderr=out)
    try:
        port = eventually(lambda: (home / "DevToolsActivePort").exists() and _first_line(home / "DevToolsActivePort"))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = json.loads(await answer.text())
            page = next(one for one in pages if one["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=2**26) as socket:
                yield Browser(socket)
    finally:
        child.terminate()
        await child.wait()


def _first_line(path: Path) -> str:
    return (path.read_text(encoding="utf-8").splitlines() or [""])[0]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")
async def test_a_rollback_in_a_browser(served: Daemon, address: str, tmp_path: Path) -> None:  # noqa: F811
    head = served_release(served)
    async with chromium(tmp_path) as page:
        for domain in ("Network", "Page", "Runtime"):
            await page.do(f"{domain}.enable")
        await page.do("Page.navigate", url=address)
        await page.until_page("!!document.querySelector('input[name=token]')")
        assert (
            served.url
            not in (await page.do("Runtime.evaluate", expression="document.body.innerText"))["result"]["value"]
        )
        await page.do(
            "Runtime.evaluate",
            expression=f"document.querySelector('input').value={json.dumps(token_of(served))};document.forms[0].submit()",
        )
        await page.until_page("!!document.querySelector('#terminal textarea')")
        await page.until(lambda: "scenario: s" in page.drawn)
        await page.do("Runtime.evaluate", expression="document.querySelector('#terminal textarea').focus()")
        await page.type("2b")
        await page.until(lambda: "to confirm" in page.drawn)
        wanted = re.findall(r"Type (r\d+) to confirm", page.drawn)[-1]
        await page.type(wanted)
        await page.do(
            "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
        await page.until(lambda: f"restores {wanted}" in page.drawn)
    now = served_release(served)
    assert now["restored_from"] == wanted and now["release_id"] != head["release_id"]


def served_release(one: Daemon) -> dict[str, Any]:
    """The release that is served."""
    with one.client() as client:
        return next(row for row in client.releases("s") if row["state"] == "serving")
