"""The composition root and the door: what does not boot, by which names the daemon may be called, odd input."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from reef.config import load
from reef.daemon.app import build_app
from reef.errors import BadConfig
from reef.launch import StartFailed
from tests.daemon.test_relay import app_at
from tests.support import daemon

UPSTREAM = {"reef.upstream_url": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"reef.recipe": "pg"}, "reef.recipe"),
        ({"reef.host": "0.0.0.0"}, "reef.host"),
        ({"reef.port": "x"}, "reef.port"),
        ({"reef.upstream_url": "not a url"}, "reef.upstream_url"),
        ({"reef.upstream_url": "http://[::1"}, "reef.upstream_url"),
        ({"reef.upstream_url": "http://host:99999"}, "reef.upstream_url"),
        ({"reef.upstream_url": "http://me:pw@far.example", "reef.upstream_api_key": "sk-1"}, "reef.upstream_url"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, settings: dict[str, str], field: str
) -> None:
    home = tmp_path / "home"
    with pytest.raises(BadConfig) as failed:
        build_app(load(None, overrides={**UPSTREAM, **settings}, environ={}, home=home), "a-test-token")
    assert failed.value.field == field
    assert not home.exists()


@pytest.mark.parametrize(
    ("host", "called", "status"),
    [
        ("::1", "[::1]:8900", 200),
        ("::1", "[::1]", 200),
        ("0:0:0:0:0:0:0:1", "[0:0:0:0:0:0:0:1]:8900", 200),
        ("127.0.0.1", "localhost:8900", 200),
        ("127.0.0.1", "[::2]:8900", 403),
        ("127.0.0.1", "127.0.0.1.evil.test", 403),
    ],
)
async def test_by_which_names_it_may_be_called(tmp_path: Path, host: str, called: str, status: int) -> None:
    async with app_at(tmp_path, "http://127.0.0.1:9", host=host) as (_, client):
        assert (await client.get("/reef/status", headers={"host": called})).status_code == status


async def test_digits_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    async with app_at(tmp_path, "http://127.0.0.1:9") as (_, client):
        await client.post("/reef/scenarios", json={"name": "s"})
        for path in ("/reef/scenarios/s/records?limit=²", "/reef/events?after=²"):
            assert (await client.get(path)).status_code == 400


def test_an_emptied_token_file_opens_no_door(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one:
        for headers in ({"x-api-key": ""}, {"x-reef-token": ""}):
            assert httpx.get(one.url + "/reef/status", headers=headers).status_code == 401
        with one.client() as client:
            assert client.status()["daemon"]["ready"]


@pytest.mark.parametrize("content", ["one\ntwo", "tökén", "a" * 5000])
def test_a_token_that_no_client_could_send_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content, encoding="utf-8")
    with pytest.raises(StartFailed, match="token has characters"), daemon(tmp_path, reef_upstream_url="http://h"):
        pass


def test_what_stands_where_the_database_should_is_named(tmp_path: Path) -> None:
    (tmp_path / "reef.db").mkdir()
    with pytest.raises(StartFailed, match=r"reef\.db cannot be opened"), daemon(tmp_path, reef_upstream_url="http://h"):
        pass
