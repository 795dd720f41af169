"""export, import: what was recorded, as JSON lines or Parquet, page by page; and back in, each line once by its id."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from reef.cli.bar import Progress, bar
from reef.cli.common import HomeOption, JsonOption, client_of, print_json, say, since_of
from reef.cli.complete import complete_scenarios
from reef.cli.place import home_of
from reef.client import ReefClient, RemoteError, path_part
from reef.errors import BadRequest, Conflict, NotFound

_KINDS = {"all": None, "records": "inference", "reports": "report", "training": "inference"}
_FORMATS = ("jsonl", "parquet")
_PAGE = 200
_WINDOW_LINES, _WINDOW_BYTES = 200, 8 * 2**20
_SHOWN_ERRORS = 20
_TRIES, _WAIT_S = 10, 1.0
_OF_THE_LINE = (400, 404, 409, 413, 415)
"""What is wrong with one line; any other error is the daemon's, and ends the import."""
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""JSON lets them stand, and many readers of lines take them for the end of one."""
_NO_LINES = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip", b"PAR1": "Parquet", b"PK\x03\x04": "a zip archive"}
"""What some files begin with that people have, and what they are."""
_UNPACK = {
    "zstd": "zstd -dc FILE | reef import -",
    "gzip": "gzip -dc FILE | reef import -",
    "Parquet": "export again with --format jsonl",
    "a zip archive": "unpack it, then: reef import FILE",
}
_FIELDS = {
    "inference": ("agent_record_id", "state", "session", "release_id", "created_at", "usage", "scenario"),
    "report": ("agent_record_id", "score", "feedback", "references", "metadata", "session", "scenario"),
}

IntoOption = Annotated[
    str | None,
    typer.Option(
        "--scenario",
        "-s",
        help="Put all lines into this one, whatever they say.",
        show_default=False,
        autocompletion=complete_scenarios,
    ),
]
ScenariosOption = Annotated[
    str | None,
    typer.Option(
        "--scenario",
        "-s",
        envvar="REEF_SCENARIO",
        help="Only this one.",
        show_default=False,
        autocompletion=complete_scenarios,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(name="export")(export)
    app.command(name="import")(import_file)


def export(
    what: Annotated[str, typer.Argument(help="all, records, reports or training (token rows).")] = "all",
    scenario: ScenariosOption = None,
    home: HomeOption = None,
    format: Annotated[str, typer.Option("--format", "-f", help="jsonl or parquet.")] = "jsonl",
    since: Annotated[str | None, typer.Option(help="Only from then on: 10m, 2h, 3d, or 2026-01-31T08:00.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write; default: standard output.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write what was recorded, oldest first, a line or a row for each record.

    Examples: reef export > all.jsonl | reef export training --format parquet -o rows.parquet
    """
    if what not in _KINDS:
        raise BadRequest(f"nothing is called {what!r}", hint=f"one of: {', '.join(_KINDS)}")
    if format not in _FORMATS:
        raise BadRequest(f"no format {format!r}", hint=f"one of: {', '.join(_FORMATS)}")
    if output is None and (format == "parquet" or as_json):
        raise BadRequest("this needs a file to write", hint="add -o FILE")
    if output is not None:
        _check_new(output)
    first = None if since is None else since_of(since)
    with client_of(home) as client, bar(bytes=False) as progress:
        rows = _rows(client, what, scenario, first, progress)
        if output is None:
            count = _write_lines(rows, sys.stdout.buffer)
            sys.stdout.buffer.flush()  # before it is said
        else:
            fresh = output.with_name(f".{output.name}.{os.getpid()}")
            try:
                if format == "parquet":
                    from reef.cli.parquet import write_parquet

                    count = write_parquet(rows, fresh, what)
                else:
                    with fresh.open("xb") as file:
                        count = _write_lines(rows, file)
                fresh.rename(output)
            finally:
                fresh.unlink(missing_ok=True)
    if as_json:
        print_json("export", {"path": str(output), "rows": count, "what": what})
    else:
        say(f"{count:,} row{'' if count == 1 else 's'}" + (f" in {output}" if output is not None else ""))


def import_file(
    file: Annotated[Path, typer.Argument(help="JSON lines as reef export writes them; - reads standard input.")],
    scenario: IntoOption = None,
    home: HomeOption = None,
    rejected: Annotated[Path | None, typer.Option(help="Write the lines that were not taken to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring exported records and reports in. Doing it again changes nothing: each is stored once by its id.

    A line that is not taken is named, and the others go on. Reports are judged anew and may train here.

    Example: reef import all.jsonl --rejected not-taken.jsonl
    """
    if rejected is not None:
        _check_new(rejected)
    errors: list[dict[str, Any]] = []
    piped, done = str(file) == "-", 0
    if not piped and file.is_dir():
        raise BadRequest(f"{file} is a directory", hint="give a file of JSON lines; make one with: reef export -o FILE")
    if not piped and not file.exists():
        raise NotFound(f"there is no file {file}", hint="make one with: reef export -o FILE")
    with contextlib.ExitStack() as held:
        if piped and sys.stdin is None:
            raise BadRequest("standard input is closed", hint="give a file, or a pipe")
        lines: IO[bytes] = sys.stdin.buffer if piped else held.enter_context(file.open("rb"))
        _check_lines(lines, file)
        progress = held.enter_context(bar())
        importing = _Importing(home_of(home), scenario)
        held.callback(importing.close)
        kept = held.enter_context(rejected.open("xb")) if rejected is not None else None
        for window in _windows(lines):
            for line, said in importing.take(window):
                errors.append({"line": line.number, "message": said})
                if not as_json and len(errors) <= _SHOWN_ERRORS:
                    say(f"line {line.number}: {said}")
                if kept is not None:
                    kept.write(line.raw.rstrip(b"\n") + b"\n")
            done += sum(len(line.raw) for line in window)
            progress("importing", done, None if piped else file.stat().st_size)
    if as_json:
        counts = {f"{name}": getattr(importing, name) for name in ("records", "reports", "new", "known")}
        print_json("import", {**counts, "errors": errors})
    else:
        more = f"; {len(errors):,} lines were not taken" if errors else ""
        said = f"{importing.records:,} records and {importing.reports:,} reports are in"
        say(f"{said}: {importing.new:,} new, {importing.known:,} were there already{more}")
    if errors:
        raise typer.Exit(1)


def _check_lines(lines: IO[bytes], file: Path) -> None:
    """Raise when what begins here cannot be lines of JSON; nothing of it is used up."""
    begin = lines.peek(4)[:4] if isinstance(lines, io.BufferedReader) else b""
    kind = next((kind for magic, kind in _NO_LINES.items() if begin.startswith(magic)), None)
    if kind is not None:
        raise BadRequest(
            f"{file} is {kind}, and an import takes JSON lines",
            hint=f"{_UNPACK[kind]}; a backup is brought back with: reef restore FILE",
        )


def _check_new(path: Path) -> None:
    """Raise when ``path`` exists or cannot be made; what is written is for its owner's eyes only, as the store is."""
    os.umask(0o077)
    if path.exists():
        raise Conflict(f"{path} exists", hint="choose another name, or remove it first", code="file_exists")
    if not path.parent.is_dir():
        raise NotFound(f"there is no directory {path.parent}", hint="make it first")


# -- out


def _rows(
    client: ReefClient, what: str, scenario: str | None, since: float | None, progress: Progress
) -> Iterator[dict[str, Any]]:
    """The rows of all pages; one page is in memory at a time."""
    kind, found = _KINDS[what], client.get("/reef/scenarios")["scenarios"]
    if scenario is not None:
        found = [client.get(f"/reef/scenarios/{path_part(scenario)}")]
    counted = [
        count for one in found for type, by in one["counts"].items() if kind in (None, type) for count in by.values()
    ]
    done = 0
    for name in (one["name"] for one in found):
        last = 0
        while page := client.records(name, type=kind, after=last, since=since, limit=_PAGE, bodies="true"):
            last = page[-1]["seq"]
            done += len(page)
            progress("exporting", done, sum(counted) if since is None else None)
            yield from page if what != "training" else filter(None, (_training_row(client, one) for one in page))


def _training_row(client: ReefClient, record: dict[str, Any]) -> dict[str, Any] | None:
    """The token block of an exchange with the scores that were given to it; None where there is none."""
    response = record["response"]
    block = response.get("training") if isinstance(response, dict) else None
    if block is None:
        return None
    names = ("agent_record_id", "scenario", "release_id", "session", "created_at", "consumed_by")
    scores = [client.record(one)["score"] for one in record["reports"]]
    return {**{name: record[name] for name in names}, "scores": [one for one in scores if one is not None], **block}


def _write_lines(rows: Iterable[dict[str, Any]], file: IO[bytes]) -> int:
    count = 0
    for count, row in enumerate(rows, start=1):  # noqa: B007
        text = json.dumps(row, ensure_ascii=False).translate(_LINE_ENDS)
        try:
            raw = text.encode()
        except UnicodeEncodeError:  # half of a pair of UTF-16: only an escape can hold it
            raw = json.dumps(row).encode()
        file.write(raw + b"\n")
    file.flush()
    return count


# -- in


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the file as it is."""

    number: int
    raw: bytes


def _windows(lines: Iterable[bytes]) -> Iterator[list[_Line]]:
    """The lines in groups that are bounded in number and in bytes; empty ones are left out."""
    window: list[_Line] = []
    size = 0
    for number, raw in enumerate(lines, start=1):
        if raw.strip():
            window.append(_Line(number, raw))
            size += len(raw)
        if len(window) >= _WINDOW_LINES or size >= _WINDOW_BYTES:
            yield window
            window, size = [], 0
    if window:
        yield window


class _Importing:
    """Sends lines to the daemon: the records of a window in one request for each scenario, then its reports in order."""

    def __init__(self, home: Path, scenario: str | None) -> None:
        self._home, self._scenario = home, scenario
        self._clients: dict[str | None, ReefClient] = {}
        self.records = self.reports = self.new = 0

    @property
    def known(self) -> int:
        """How many were stored before."""
        return self.records + self.reports - self.new

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()

    def take(self, window: list[_Line]) -> Iterator[tuple[_Line, str]]:
        """Store what can be stored; gives each line that was not taken with the reason."""
        records: dict[str | None, list[tuple[_Line, dict[str, Any]]]] = {}
        reports: list[tuple[_Line, str | None, dict[str, Any]]] = []
        for line in window:
            try:
                kind, document = _read(line)
                scenario = document.pop("scenario", None)
                scenario = scenario if self._scenario is None else self._scenario
                if scenario is not None and not isinstance(scenario, str):
                    raise BadRequest("scenario must be text", field="scenario")
            except BadRequest as error:
                yield line, error.message
                continue
            if kind == "report":
                reports.append((line, scenario, document))
            else:
                records.setdefault(scenario, []).append((line, document))
        for scenario, some in records.items():
            for line, said in self._send_records(scenario, some):
                yield line, said
        for line, scenario, document in reports:
            done = self._sent(scenario, "/reef/report", document)
            if isinstance(done, str):
                yield line, done
            else:
                self.reports += 1
                self.new += not done["duplicate"]

    def _send_records(
        self, scenario: str | None, some: list[tuple[_Line, dict[str, Any]]]
    ) -> Iterator[tuple[_Line, str]]:
        done = self._sent(scenario, "/reef/records", {"records": [document for _, document in some]})
        if not isinstance(done, str):
            self.records += len(some)
            self.new += done["new"]
        elif len(some) == 1:
            yield some[0][0], done
        else:  # one of them is refused, and which one is only known when each is sent alone
            for one in some:
                yield from self._send_records(scenario, [one])

    def _sent(self, scenario: str | None, path: str, body: dict[str, Any]) -> dict[str, Any] | str:
        """What the daemon says of ``body``, the reason when it cannot be stored. Raises when nothing can be stored now."""
        for left in reversed(range(_TRIES)):
            try:
                return self._client(scenario).post(path, body)
            except BadRequest as error:  # it cannot even be sent
                return error.message
            except RemoteError as error:
                if error.status in _OF_THE_LINE:
                    field = (error.field or "").removeprefix("records[0].")
                    return f"{field}: {error.message}" if field else error.message
                if error.status != 503 or not left:
                    raise
                time.sleep(_WAIT_S)
        raise AssertionError("unreachable")

    def _client(self, scenario: str | None) -> ReefClient:
        if scenario not in self._clients:
            self._clients[scenario] = ReefClient.from_home(self._home, scenario=scenario, actor="import")
        return self._clients[scenario]


def _read(line: _Line) -> tuple[str, dict[str, Any]]:
    """What a line is, and what is sent of it; a line without an id gets one that is the same the next time."""
    try:
        found = json.loads(line.raw)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRequest("it is not a JSON object")
    kind = found.get("request_type") or ("inference" if "request" in found else "report")
    if kind not in _FIELDS:
        raise BadRequest(f"request_type {kind!r} cannot be imported")
    sent = {name: found[name] for name in _FIELDS[kind] if found.get(name) is not None}
    if not sent.get("metadata"):
        sent.pop("metadata", None)
    if kind == "inference":
        sent |= {"request": found.get("request"), "response": found.get("response")}
    if not sent.get("agent_record_id"):
        sent["agent_record_id"] = f"line-{hashlib.sha256(b'%d ' % line.number + line.raw).hexdigest()[:32]}"
    return kind, sent
