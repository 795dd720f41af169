"""The plug is pulled under eight clients: what a disk had not stored is gone, and nothing that was promised is among it.

A real daemon on an ext4 of its own that is shut down between two moments of its journal (as xfstests' godown does).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.machine import disk
from tests.faults.test_kill import CLIENTS, SEED, SOAK, Client, Promises, check, sound
from tests.faults.world import Echo
from tests.support import Daemon, on_thread


def cut_the_power(folder: Path, times: int) -> None:
    chance = random.Random(SEED)
    everything = Promises()
    with on_thread(Echo(pause_s=0.005)) as upstream, disk(folder) as plugged:
        one = Daemon(plugged.path / "home", {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        try:
            for _ in range(times):
                one.start()
                clients = [Client(one, f"c{number}") for number in range(CLIENTS)]
                for client in clients:
                    client.start()
                for client in clients:
                    assert client.promised.wait(60)
                one.died(chance.uniform(0.0, 0.8))
                for client in clients:
                    client.cut.set()
                plugged.cut()
                one.kill()
                for client in clients:
                    client.join()
                    everything.receipts += client.promises.receipts
                    everything.reports |= client.promises.reports
                plugged.unmount()
                plugged.mount()
                assert sound(one.home)
            one.start()
            with one.client() as client:
                check(client, everything)
                assert not client.records("s", state="open")
            print(
                f"{times} power cuts: {len(everything.receipts)} receipts and {len(everything.reports)} reports"
                " acknowledged, 0 lost"
            )
        finally:
            one.kill()


def test_power_cuts_lose_nothing_that_was_promised(tmp_path: Path) -> None:
    cut_the_power(tmp_path, 3)


@SOAK
@pytest.mark.soak
def test_twenty_two_power_cuts_lose_nothing_that_was_promised(tmp_path: Path) -> None:
    cut_the_power(tmp_path, 22)
