"""call, report, records: what agents do and what is kept of it."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli.common import (
    HomeOption,
    JsonOption,
    RecordArgument,
    ScenarioOption,
    ago,
    client_of,
    cut,
    goes_on,
    out,
    print_json,
    read_stdin,
    say,
    scenario_of,
    spinner,
    table,
)
from reef.cli.complete import complete_records
from reef.cli.exporting import export
from reef.cli.pager import paged
from reef.cli.place import home_of
from reef.cli.tail import tail, what
from reef.client import ReefClient, RemoteError, content_text
from reef.errors import BadRequest, NotFound

_LOOKED_UP, _MODELS = 20, 5
_WAITS = "the report waits for it, and is refused when it has not come within reef.park_timeout_h"
_KEPT = "the report is kept, and names it should it come"

TypeOption = Annotated[str | None, typer.Option(help="inference, report or training.")]
StateOption = Annotated[str | None, typer.Option(help="complete, incomplete, parked, accepted, consumed, refused...")]
SessionOption = Annotated[str | None, typer.Option(help="Only this session.")]
LimitOption = Annotated[int, typer.Option("-n", help="How many.", min=1, max=500)]

records_app = typer.Typer(no_args_is_help=False, help="What has been recorded.")
records_app.command("tail")(tail)
records_app.command("export")(export)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(call)
    app.command()(report)
    app.add_typer(records_app, name="records")


def call(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads standard input.")],
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    model: Annotated[str | None, typer.Option(help="Model id; default: what the daemon serves.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.", min=1)] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.", min=0)] = None,
    session: Annotated[str | None, typer.Option(help="Groups calls of one run.")] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Show the answer as it comes.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Ask the model and print the answer; the receipt goes to stderr and is what a report names.

    Example: reef call "What is a reef?" && reef report --score 1
    """
    text = read_stdin() if prompt == "-" else prompt
    messages = [{"role": "system", "content": system}] if system else []
    body: dict[str, Any] = {"messages": [*messages, {"role": "user", "content": text}]}
    for name, value in (("max_tokens", max_tokens), ("temperature", temperature)):
        if value is not None:
            body[name] = value
    with contextlib.ExitStack() as held:
        client = held.enter_context(client_of(home, scenario))
        body["model"] = model or _served_model(client)
        keep = held.enter_context(_last_call(home_of(home), scenario))
        if stream and not as_json:
            receipt, release = _stream(client, body, session, keep)
        else:
            with spinner("waiting for the answer"):
                response = client.call(body, session=session)
            receipt = response.headers.get("x-reef-agent-record-id", "")
            keep(receipt)
            release = response.headers.get("x-reef-release-id")
            if as_json:
                document = {"agent_record_id": receipt or None, "release_id": release, "response": response.json()}
                print_json("call", document)
            else:
                sys.stdout.write(content_text(response.json()) + "\n")
    if receipt and not as_json:
        say(f"receipt {receipt}" + (f"  release {release}" if release else ""), "dim")
    elif not as_json:
        say("this answer was not recorded, and nothing can be reported on it; see why: reef status")


def report(
    references: Annotated[
        list[str] | None, typer.Argument(help="Receipts; default: the last reef call.", autocompletion=complete_records)
    ] = None,
    score: Annotated[float | None, typer.Option(help="How good it was, e.g. 0 to 1.")] = None,
    feedback: Annotated[str | None, typer.Option(help="What was good or bad, in words.")] = None,
    session: Annotated[str | None, typer.Option(help="Report on all calls of a session instead.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="KEY=VALUE that the recipe reads, e.g. group=1.")] = None,
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how good an answer was.

    Examples: reef report --score 1 | reef report 01m8... --score 0 --feedback "missed the empty case"
    """
    named = list(references or ())
    if odd := [pair for pair in metadata or () if not pair.partition("=")[0] or "=" not in pair]:
        raise BadRequest(f"--metadata {odd[0]}: it must be KEY=VALUE", hint="for example --metadata group=round-1")
    more = dict(pair.split("=", 1) for pair in metadata or ())
    if feedback is not None and not feedback.strip():
        raise BadRequest("--feedback is empty", hint="say it in words, or leave --feedback out", field="feedback")
    if not named and session is None:
        last = _last(home_of(home))
        named, scenario = [last["receipt"]], scenario or last.get("scenario")
    with client_of(home, scenario) as client:
        found = client.report(score=score, feedback=feedback, references=named, session=session, metadata=more or None)
        unknown = _unknown(client, found["references"][:_LOOKED_UP])
    if as_json:
        print_json("report", {**found, "unknown_references": unknown})
    else:
        again = " (it was stored before)" if found["duplicate"] else ""
        about = cut(", ".join(found["references"]), 60)
        say(f"report {found['agent_record_id']} is {found['state']}{again}, about {about}")
        if found["reason"]:
            say(f"  {found['reason']}")
        for receipt in unknown:
            say(
                f"  there is no record {receipt} yet; {_KEPT if (found['reason'] or '').startswith('record_only') else _WAITS}"
            )
        say("  next: reef status   reef releases", "dim")


@records_app.callback(invoke_without_command=True)
def records_root(
    context: typer.Context,
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    type: TypeOption = None,
    state: StateOption = None,
    session: SessionOption = None,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List records, newest first."""
    if not goes_on(context):
        records_list(scenario, home, type, state, session, limit, as_json)


@records_app.command("list")
@paged
def records_list(
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    type: TypeOption = None,
    state: StateOption = None,
    session: SessionOption = None,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List records, newest first; the same as reef records. Examples: reef records list | reef records --state refused"""
    with client_of(home) as client:
        name = scenario_of(client, scenario)
        rows = client.records(name, type=type, state=state, session=session, limit=limit)
    if as_json:
        print_json("records", rows)
        return
    table(
        ("id", "age", "type", "state", "release", "what"),
        ((row["agent_record_id"], ago(row["created_at"]), row["request_type"], row["state"], row["release_id"] or "-",
          what(row)) for row in rows),
        empty=f"scenario {name} has no such records; make one: reef call \"hello\"",
    )  # fmt: skip


@records_app.command("show")
@paged
def records_show(
    record_id: RecordArgument,
    home: HomeOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="The exact bytes of the request.")] = False,
    as_json: JsonOption = False,
) -> None:
    """One record with its request, answer, reports and what it trained. Example: reef records show 01m8..."""
    with client_of(home) as client:
        if raw:
            sys.stdout.buffer.write(client.request_bytes(record_id))
            return
        found = client.record(record_id)
    if as_json:
        print_json("record", found)
        return
    for key in ("agent_record_id", "scenario", "request_type", "state", "release_id", "session"):
        out.print(Text(f"{key:16} {found.get(key) or '-'}"))
    if found["reason"]:
        out.print(Text(f"{'reason':16} {found['reason']['code']}: {found['reason']['message']}"))
    rest = {key: found[key] for key in ("request", "response", "score", "feedback", "references", "reports", "consumed_by")
            if found.get(key) not in (None, [], {})}  # fmt: skip
    if isinstance(rest.get("response"), dict) and "training" in rest["response"]:
        tokens = len(rest["response"]["training"].get("tokens", ()))
        rest["response"] = {**rest["response"], "training": f"<{tokens} token ids with log-probs; --json shows them>"}
    out.print(Text(json.dumps(rest, indent=2, ensure_ascii=False)))


def _unknown(client: ReefClient, receipts: list[str]) -> list[str]:
    """Those of ``receipts`` that name no record."""
    missing = []
    for receipt in receipts:
        try:
            client.request_bytes(receipt)
        except RemoteError as error:
            if error.status != 404:
                raise
            missing.append(receipt)
    return missing


def _served_model(client: ReefClient) -> str:
    inference = client.status()["inference"]
    if inference["model"]:
        return str(inference["model"])
    try:
        names = [str(one["id"]) for one in client.get("/v1/models")["data"]]
    except (KeyError, TypeError):
        names = []  # another shape than the usual one
    except RemoteError as error:
        if error.status >= 500:
            raise
        names = []  # it lists none, or not to us
    if len(names) == 1:
        return names[0]
    shown = f" ({', '.join(names[:_MODELS])}{', ...' if len(names) > _MODELS else ''})" if names else ""
    raise BadRequest(
        "which model? the provider was configured without one",
        hint=f"give --model NAME{shown}, or start with: reef up --upstream-model NAME",
    )


def _stream(
    client: ReefClient, body: dict[str, Any], session: str | None, keep: Callable[[str], None]
) -> tuple[str, str | None]:
    """Print text as it comes; returns receipt and release."""
    with client.stream(body, session=session) as response:
        receipt = response.headers.get("x-reef-agent-record-id", "")
        keep(receipt)
        if not response.is_success:
            response.read()
            raise RemoteError(response.status_code, _document(response.text), receipt or None)
        if response.headers.get("content-type", "").startswith("application/json"):  # a provider that does not stream
            response.read()
            document = _document(response.text)
            if "error" in document:
                raise RemoteError(502, document, receipt or None)
            sys.stdout.write(content_text(document))
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = _document(line[6:])
            if "error" in event:
                sys.stdout.write("\n")
                raise RemoteError(502, event, receipt or None)
            for choice in event.get("choices") or ():
                sys.stdout.write((choice.get("delta") or {}).get("content") or "")
                sys.stdout.flush()
        sys.stdout.write("\n")
        return receipt, response.headers.get("x-reef-release-id")


def _document(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {"error": {"message": text[:200]}}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _last_call(home: Path, scenario: str | None) -> Iterator[Callable[[str], None]]:
    """Keeps the receipt that ``reef report`` means when it names none: this call's, also when it fails or is cut short.

    One that has no receipt leaves none: the report would be about an older answer.
    """
    file = home / "last_call.json"
    with contextlib.suppress(OSError):  # where nothing can be written no report is taken either
        file.unlink(missing_ok=True)

    def keep(receipt: str) -> None:
        if receipt:
            file.touch(mode=0o600)
            file.write_text(json.dumps({"receipt": receipt, "scenario": scenario, "at": time.time()}), encoding="utf-8")

    try:
        yield keep
    except RemoteError as error:
        keep(error.receipt or "")
        if error.receipt and error.code.startswith("upstream_") and not error.hint:
            error.hint = f"see: reef status, reef records show {error.receipt}"
        raise


def _last(home: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((home / "last_call.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise NotFound(
            "there is no earlier reef call to report on", hint="name a receipt: reef report ID --score 1"
        ) from None
    return found
