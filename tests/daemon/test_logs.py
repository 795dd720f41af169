"""The log: bounded in size and in rate, goes on when its file is removed, names no secret, and can be read by people."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reef.daemon.logs import Bounded, JsonLines, LogFile, PlainLines
from tests.cli.test_cli import reef, refused
from tests.support import daemon, eventually

log = logging.getLogger("tests.log")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    """The handlers of the daemon on the test's own logger, 3 lines of a kind and 10 in all a minute."""
    clock = Clock()
    file = LogFile(tmp_path / "logs" / "reef.jsonl", file_bytes=4000, files=2)
    file.setFormatter(JsonLines(["the-long-secret", "short"]))
    handler = Bounded([file], same=3, all=10, clock=clock)
    log.addHandler(handler)
    log.setLevel("DEBUG")
    yield clock
    log.removeHandler(handler)
    handler.close()


def lines(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "logs" / "reef.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_line_is_an_object_with_time_fields_and_trace(clock: Clock, tmp_path: Path) -> None:
    try:
        raise ValueError("half \udc99 of a pair")
    except ValueError:
        record = log.makeRecord(
            log.name,
            logging.ERROR,
            __file__,
            1,
            "what %s was",
            ("it",),
            sys.exc_info(),
            extra={"scenario": "s", "count": 3},
        )
        log.handlers[0].handle(
            record
        )  # not through the logger: pytest cannot carry half characters between its processes
    (line,) = lines(tmp_path)
    assert line["time"].endswith("+00:00") and (line["level"], line["logger"]) == ("error", "tests.log")
    assert line["message"] == "what it was" and line["fields"] == {"scenario": "s", "count": "3"}
    assert line["exc"].startswith("Traceback") and "ValueError" in line["exc"]


def test_secrets_and_long_texts_are_not_written_whole(clock: Clock, tmp_path: Path) -> None:
    log.info("with %s and Bearer abc.def", "the-long-secret", extra={"header": "the-long-secret"})
    log.info("x" * 100_000)
    text = (tmp_path / "logs" / "reef.jsonl").read_text(encoding="utf-8")
    assert "the-long-secret" not in text and "abc.def" not in text
    assert len(text) < 6000


def test_what_a_daemon_in_the_foreground_shows_is_masked_too() -> None:
    record = log.makeRecord(
        log.name, logging.INFO, __file__, 1, "with %s and Bearer abc.def", ("the-long-secret",), None
    )
    shown = PlainLines(["the-long-secret"]).format(record)
    assert shown.endswith("with ******** and Bearer ********")


def test_the_same_line_is_counted_and_summed_up(clock: Clock, tmp_path: Path) -> None:
    for number in range(50):
        log.warning("upstream %d is slow", number)
    log.info("another kind")
    assert [line["message"] for line in lines(tmp_path)] == [f"upstream {n} is slow" for n in range(3)] + [
        "another kind"
    ]
    clock.now_s = 60.0
    log.info("later")
    assert [line["message"] for line in lines(tmp_path)[4:]] == [
        "47 more like this within a minute: upstream 49 is slow",
        "later",
    ]
    log.warning("upstream %d is slow", 50)
    assert lines(tmp_path)[-1]["message"] == "upstream 50 is slow"


def test_lines_that_all_differ_are_bounded_too(clock: Clock, tmp_path: Path) -> None:
    for number in range(1000):
        log.info(f"kind {number}")
    assert len(lines(tmp_path)) == 10
    clock.now_s = 61.0
    log.info("later")
    assert lines(tmp_path)[-2]["message"] == "990 other lines were held back within a minute"


def test_what_was_held_back_is_said_at_the_end(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "logs" / "reef.jsonl")
    file.setFormatter(JsonLines())
    handler = Bounded([file], same=1)
    for _ in range(5):
        handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "again", None, None))
    handler.close()
    assert lines(tmp_path)[-1]["message"] == "4 more like this within a minute: again"


def test_files_are_bounded_in_bytes(clock: Clock, tmp_path: Path) -> None:
    for minute in range(20):
        clock.now_s = minute * 60.0
        for number in range(10):
            log.info(f"{number} " + "海" * 300)
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.name for file in files] == ["reef.jsonl", "reef.jsonl.1", "reef.jsonl.2"]
    assert all(file.stat().st_size <= 4000 for file in files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)


@pytest.mark.parametrize("gone", ["file", "folder", "moved"])
def test_it_goes_on_when_the_file_is_removed(clock: Clock, tmp_path: Path, gone: str) -> None:
    log.info("before")
    path = tmp_path / "logs" / "reef.jsonl"
    if gone == "file":
        path.unlink()
    elif gone == "folder":
        shutil.rmtree(path.parent)
    else:
        path.rename(tmp_path / "elsewhere")
    log.info("after")
    assert [line["message"] for line in lines(tmp_path)] == ["after"]


def test_a_log_that_cannot_be_written_stops_nobody(clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    log.info("before")
    shutil.rmtree(tmp_path / "logs")
    (tmp_path / "logs").write_text("a file in the way")
    log.info("lost")
    (tmp_path / "logs").unlink()
    log.info("after")
    assert [line["message"] for line in lines(tmp_path)] == ["after"]
    assert capsys.readouterr().err == ""


def test_probes_and_calls_leave_no_line(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one, one.client() as client:
        before = len(lines(tmp_path))
        for _ in range(200):
            assert httpx.get(f"{one.url}/healthz", trust_env=False).status_code == 200
            client.status()
        assert len(lines(tmp_path)) == before


def entry(message: str, level: str = "info", ago_s: float = 0.0) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000+00:00", time.gmtime(time.time() - ago_s))
    return json.dumps({"time": at, "level": level, "logger": "x", "message": message}) + "\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose log was rotated once."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "reef.jsonl.1").write_text(entry("first", ago_s=9000) + entry("second", "warning", ago_s=8000))
    (folder / "reef.jsonl").write_text(entry("third", "error") + "not JSON\n" + entry("see [3] and [/etc]"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), ["first", "second", "third", "see [3] and [/etc]"]),
        (("-n", "1"), ["see [3] and [/etc]"]),
        (("-n", "0"), []),
        (("--level", "warning"), ["second", "third"]),
        (("--since", "1h"), ["third", "see [3] and [/etc]"]),
        (("--since", "2020-01-01", "--level", "error"), ["third"]),
    ],
)
def test_reef_logs(home: Path, words: tuple[str, ...], shown: list[str]) -> None:
    said = [json.loads(line)["message"] for line in reef(home, "logs", "--json", *words).out.splitlines()]
    assert said == shown
    people = reef(home, "logs", *words).out.splitlines()
    assert len(people) == len(shown) and all(line.endswith(one) for line, one in zip(people, shown, strict=True))


def test_reef_logs_refuses_what_it_cannot_read(tmp_path: Path, home: Path) -> None:
    refused(reef(tmp_path / "none", "logs"), 4, "there is no log", "reef up")
    refused(reef(home, "logs", "--level", "loud"), 2, "no level 'loud'", "warning")
    refused(reef(home, "logs", "--since", "yesterday"), 2, "is no time", "10m")


def test_reef_logs_follows_over_a_rotation(home: Path) -> None:
    path = home / "logs" / "reef.jsonl"
    words = [sys.executable, "-m", "reef.cli.main", "logs", "-f", "-n", "1", "--json", "--home", str(home)]
    seen = home / "seen"
    with seen.open("wb") as out, subprocess.Popen(words, stdout=out) as child:
        try:
            eventually(lambda: "see [3]" in seen.read_text())
            with path.open("a") as file:
                file.write(entry("fourth")[:20])
                file.flush()
                file.write(entry("fourth")[20:])
            eventually(lambda: "fourth" in seen.read_text())
            path.rename(home / "logs" / "reef.jsonl.2")
            path.write_text(entry("fifth"))
            eventually(lambda: "fifth" in seen.read_text())
        finally:
            child.terminate()
    assert [json.loads(line)["message"] for line in seen.read_text().splitlines()][1:] == ["fourth", "fifth"]


def test_the_newest_lines_are_read_over_http_also_those_of_the_run_before(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one:
        with one.client() as client:
            first = client.get("/reef/logs")["lines"]
            assert first[-1]["message"] == f"ready at {one.url}" and first[-1]["level"] == "info"
            assert client.get("/reef/logs", after=first[-1]["number"])["lines"] == []
            assert client.get("/reef/logs", level="warning")["lines"] == []
        one.stop()
        with (tmp_path / "logs" / "reef.jsonl").open("a", encoding="utf-8") as file:
            file.write('half of a line\n[1]\n{"level": "info"}\n')
        one.start()
        with one.client() as client:
            again = client.get("/reef/logs", limit=500)["lines"]
            said = [line["message"] for line in again]
            assert sum(text.startswith("ready at ") for text in said) == 2
            assert [line["number"] for line in again] == list(range(1, len(again) + 1))
            assert len(client.get("/reef/logs", limit=1)["lines"]) == 1
