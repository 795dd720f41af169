"""The only HTTP client of the daemon: CLI, TUI, wrappers, tests and users' scripts go through it.

Knows the routes and the error shape; nothing of files but how a home says where its daemon is. Never uses a proxy.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from reef.errors import BadRequest, DaemonUnreachable, NotFound, ReefError, Unauthorized

if TYPE_CHECKING:  # loaded by the functions that need it: it takes as long as the rest of a command
    import httpx

_CONNECT_S = 5.0


class RemoteError(ReefError):
    """An error the daemon answered with; status, code, field and exit code are the daemon's.

    ``receipt`` names the record of a model call that failed, None where nothing was recorded.
    """

    def __init__(self, status: int, body: Mapping[str, Any], receipt: str | None = None) -> None:
        said = body.get("error", body)
        error = said if isinstance(said, Mapping) else {"message": str(said)}
        super().__init__(
            str(error.get("message", f"HTTP {status}")),
            hint=str(error.get("hint") or ""),
            code=str(error.get("code") or "remote"),
            field=error.get("field"),
        )
        self.status = status
        self.receipt = receipt
        kinds = ReefError.__subclasses__()
        named = [kind for kind in kinds if kind.code == self.code] or [
            kind for kind in kinds if vars(kind).get("status") == status
        ]
        self.exit_code = named[0].exit_code if named else 1


class ReefClient:
    """Blocking client of one daemon. ``scenario`` is sent with calls and reports; None leaves it to the daemon."""

    def __init__(
        self, url: str, token: str, *, scenario: str | None = None, actor: str = "client", timeout_s: float = 600.0
    ) -> None:
        self.url = url
        self.scenario = scenario
        headers = {"x-reef-token": token, "x-reef-actor": actor}
        if scenario is not None:
            headers["x-reef-scenario"] = scenario
        import httpx

        try:
            self.http = httpx.Client(
                base_url=url, headers=headers, timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S), trust_env=False
            )
        except UnicodeEncodeError as error:
            raise BadRequest(
                f"{error.object[:40]!r} cannot be sent in a header",
                hint="scenarios are named with letters, digits, '.', '_' and '-'; a token is plain ASCII",
            ) from error

    @classmethod
    def from_home(
        cls, home: Path, *, scenario: str | None = None, actor: str = "client", timeout_s: float = 600.0
    ) -> Self:
        """The client of the daemon that serves ``home``; raises DaemonUnreachable when none says where it is."""
        return cls(*door_of(home), scenario=scenario, actor=actor, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    # -- what agents do

    def call(
        self, body: Mapping[str, Any], *, path: str = "/v1/chat/completions", session: str | None = None
    ) -> httpx.Response:
        """One plain model call; the receipt is in the header ``x-reef-agent-record-id``."""
        with _reaching(self.url):
            answer = self.http.request("POST", path, json=body, headers=_named(session))
        return _checked(answer)

    @contextlib.contextmanager
    def stream(
        self, body: Mapping[str, Any], *, path: str = "/v1/chat/completions", session: str | None = None
    ) -> Iterator[httpx.Response]:
        """A streamed model call as a context manager that gives the open httpx.Response."""
        with (
            _reaching(self.url),
            self.http.stream("POST", path, json={**body, "stream": True}, headers=_named(session)) as response,
        ):
            yield response

    def report(
        self,
        *,
        score: float | None = None,
        feedback: Any = None,
        references: Sequence[str] = (),
        session: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        agent_record_id: str | None = None,
    ) -> dict[str, Any]:
        """Report on receipts, or on all calls of a session."""
        body = {
            "score": score,
            "feedback": feedback,
            "references": list(references) or None,
            "session": session,
            "metadata": metadata,
            "agent_record_id": agent_record_id,
        }
        return self.post("/reef/report", {key: value for key, value in body.items() if value is not None})

    # -- what people ask

    def ready(self) -> bool:
        """True when the first call would be served."""
        try:
            with _reaching(self.url):
                return self.http.get("/healthz", timeout=2.0).status_code == 200
        except DaemonUnreachable:
            return False

    def status(self) -> dict[str, Any]:
        """The whole daemon in one document."""
        return self.get("/reef/status")

    def record(self, record_id: str) -> dict[str, Any]:
        """One record with its bodies."""
        return self.get(f"/reef/records/{path_part(record_id)}")

    def request_bytes(self, record_id: str) -> bytes:
        """The exact bytes of a record's request."""
        return _checked(self._send("GET", f"/reef/records/{path_part(record_id)}/request")).content

    def records(self, scenario: str, **query: Any) -> list[dict[str, Any]]:
        """A page of records, newest first."""
        found: list[dict[str, Any]] = self.get(f"/reef/scenarios/{path_part(scenario)}/records", **query)["records"]
        return found

    def releases(self, scenario: str, **query: Any) -> list[dict[str, Any]]:
        """The chain, newest first."""
        found: list[dict[str, Any]] = self.get(f"/reef/scenarios/{path_part(scenario)}/releases", **query)["releases"]
        return found

    def release(self, scenario: str, release_id: str) -> dict[str, Any]:
        """One release with the records it learned from."""
        return self.get(f"/reef/scenarios/{path_part(scenario)}/releases/{path_part(release_id)}")

    def diff(self, scenario: str, release_id: str, to: str | None = None) -> dict[str, Any]:
        """What changed in a release since ``to``, None for the one it was made from."""
        return self.get(f"/reef/scenarios/{path_part(scenario)}/releases/{path_part(release_id)}/diff", to=to)

    def act(self, scenario: str, action: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """rollback, promote, reject, pause, resume or step."""
        return self.post(f"/reef/scenarios/{path_part(scenario)}/{action}", body or {})

    def knobs(self) -> dict[str, Any]:
        """Every key of the deployment: ``knobs[{name, value, default, origin, help, applies}]``."""
        return self.get("/reef/knobs")

    def change_knobs(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Change numbers of the recipe from the next batch on, until the daemon stops; None takes a change back."""
        return self._written("PATCH", "/reef/knobs", {"knobs": dict(knobs)})

    def events(self, after: int | None = None, *, greeting: bool = False) -> Iterator[dict[str, Any]]:
        """Events as they happen; ends when the daemon does. With ``greeting`` the first says that it listens: no event."""
        query = {} if after is None else {"after": str(after)}
        with _reaching(self.url), self.http.stream("GET", "/reef/events", params=query, timeout=None) as response:
            if not response.is_success:
                response.read()
                _checked(response)
            if greeting:
                yield {"kind": "listening"}
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield _parsed(line[6:], self.url)

    # -- plumbing

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """GET a JSON document."""
        params = {key: str(value) for key, value in query.items() if value is not None}
        return _document(self._send("GET", path, params=params))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST a JSON document; raises BadRequest when ``body`` is none."""
        return self._written("POST", path, body)

    def _written(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            raw = json.dumps(dict(body), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise BadRequest(f"this cannot be sent as JSON: {error}", hint="numbers must be finite") from error
        headers = {"content-type": "application/json"}
        return _document(self._send(method, path, content=raw, headers=headers))

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        with _reaching(self.url):
            return self.http.request(method, path, **arguments)


class AsyncReefClient:
    """As ReefClient, for a program with an event loop: a stream that waits can be cancelled, which a thread cannot."""

    def __init__(self, url: str, token: str, *, actor: str = "client", timeout_s: float = 600.0) -> None:
        import httpx

        self.url = url
        headers = {"x-reef-token": token, "x-reef-actor": actor}
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        try:
            self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, trust_env=False)
        except (UnicodeEncodeError, httpx.InvalidURL) as error:
            raise BadRequest(
                f"{url!r} cannot be reached: {error}", hint="give an address like http://127.0.0.1:8900"
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        """GET a JSON document."""
        params = {key: str(value) for key, value in query.items() if value is not None}
        with _reaching(self.url):
            return _document(await self.http.get(path, params=params))

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST a JSON document."""
        return await self._written("POST", path, body)

    async def change_knobs(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Change numbers of the recipe from the next batch on, until the daemon stops; None takes a change back."""
        return await self._written("PATCH", "/reef/knobs", {"knobs": dict(knobs)})

    async def _written(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        with _reaching(self.url):
            return _document(await self.http.request(method, path, json=dict(body)))

    async def events(self, after: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """Events as they happen; ends when the daemon does."""
        query = {} if after is None else {"after": str(after)}
        with _reaching(self.url):
            async with self.http.stream("GET", "/reef/events", params=query, timeout=None) as response:
                if not response.is_success:
                    await response.aread()
                    _checked(response)
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield _parsed(line[6:], self.url)


@contextlib.contextmanager
def _reaching(url: str) -> Iterator[None]:
    """What the transport raises, as DaemonUnreachable, or BadRequest where nothing could be sent."""
    import httpx

    try:
        yield
    except UnicodeEncodeError as error:
        said = error.object[max(0, error.start - 20) : error.end + 20]
        raise BadRequest(f"{said!r} cannot be sent: it is no UTF-8 text", hint="write it in UTF-8") from error
    except httpx.LocalProtocolError as error:  # it never left: a line's end or another control in a header
        raise BadRequest(f"this cannot be sent: {error}", hint="give a name without control characters") from error
    except (httpx.TransportError, httpx.InvalidURL, httpx.DecodingError) as error:
        raise DaemonUnreachable(
            f"no answer from {url}: {error}", hint="start it with: reef up, or see: reef logs"
        ) from error


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    try:
        body = response.json()
    except ValueError:
        body = {"error": {"message": f"HTTP {response.status_code}: {response.text[:200]}"}}
    receipt = response.headers.get("x-reef-agent-record-id")
    raise RemoteError(response.status_code, body if isinstance(body, dict) else {}, receipt)


class Document(dict[str, Any]):
    """What a daemon answers; a field that is not there is told as the answer's fault."""

    def __missing__(self, key: str) -> Any:
        raise no_daemon("what answers", f"{key!r} is missing")


def no_daemon(where: str, wrong: str) -> DaemonUnreachable:
    """Something answers, but not as a daemon of this version does."""
    return DaemonUnreachable(
        f"{where} is no reef daemon of this version: {wrong}",
        hint="see what has its port: reef doctor; or start it again: reef down, reef up",
    )


def _document(response: httpx.Response) -> dict[str, Any]:
    return _parsed(_checked(response).content, str(response.url.copy_with(path="/", query=None)))


def _parsed(raw: bytes | str, url: str) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise no_daemon(f"what answers at {url.rstrip('/')}", "that is no JSON object")
    return Document(found)


def _named(session: str | None) -> dict[bytes, bytes]:
    return {} if session is None else {b"x-reef-session": session.encode()}


def path_part(name: str) -> str:
    """``name`` as one part of a path; what would be another path is the name of nothing."""
    if name in ("", ".", ".."):
        raise NotFound(
            f"nothing is named {name!r}", hint="see what there is: reef scenarios, reef records, reef releases"
        )
    return quote(name, safe="")


def door_of(home: Path) -> tuple[str, str]:
    """Address and token of the daemon that serves ``home``; raises DaemonUnreachable when none says where it is."""
    found = discovery(home)
    if found is None:
        raise DaemonUnreachable(f"no daemon runs on {home}", hint="start it with: reef up")
    return str(found["url"]), token_in(home)


def token_in(home: Path) -> str:
    """The token of the daemon that serves ``home``; raises Unauthorized where it cannot be read."""
    path = home / "token"
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise Unauthorized(
            f"the token cannot be read: {path}: {error.strerror}",
            hint="a start makes one: reef down, reef up",
            code="no_token",
        ) from error


def discovery(home: Path) -> dict[str, Any] | None:
    """What the daemon of ``home`` wrote about itself (``url``, ``pid``, ``state``...), None when there is no file."""
    try:
        found = json.loads((home / "daemon.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if isinstance(found, dict) and "url" in found else None


def content_text(body: Mapping[str, Any]) -> str:
    """The answer's text of a chat completion; raises NotFound when it holds none."""
    try:
        text = body["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise NotFound("the answer holds no message") from None
    return text or ""
