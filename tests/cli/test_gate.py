"""``reef gate``: offline arithmetic as a user types it. Verdicts of real releases are in tests/evolve."""

from __future__ import annotations

import json
import re
from pathlib import Path

from reef.gate import GateSettings
from tests.cli.test_cli import reef, schema


def test_the_last_line_of_a_simulation_is_its_result(tmp_path: Path) -> None:
    ran = reef(tmp_path, "gate", "simulate", "--effect", "0", "--runs", "300", "--json")
    found = json.loads(ran.out.splitlines()[-1])
    assert ran.code == 0 and set(found) == {"schema", "published", "inconclusive", "runs", "mean_pairs"}
    assert found["schema"] == "reef.simulation/1"
    assert found["runs"] == 300 and found["published"] <= 15 and found["mean_pairs"] > 10
    again = reef(tmp_path, "gate", "simulate", "--effect", "0", "--runs", "300", "--json")
    assert again.out == ran.out
    counted = reef(tmp_path, "gate", "simulate", "--runs", "300", "--rule", "wins", "--tasks", "10", "--json")
    assert 60 < json.loads(counted.out)["published"] < 160
    assert counted.err == "simulating 300 candidates, which can take some seconds\n"


def test_a_plan_says_what_an_effect_costs_and_what_can_never_be_seen(tmp_path: Path) -> None:
    plan = schema(reef(tmp_path, "gate", "plan", "--effect", "0.2", "--minutes", "3", "--json"), "plan")
    first = plan["rows"][0]
    assert first["published"] > 0.6 and first["fewest_wins"] == 8
    assert first["minutes"] == 6 * first["mean_pairs"] and 40 < plan["fixed_sample_pairs"] < 50
    few = reef(tmp_path, "gate", "plan", "--pairs", "4")
    assert "never" in few.out and few.err.startswith("simulating 3,000 candidates")


def test_the_defaults_of_its_options_are_those_of_the_gate(tmp_path: Path) -> None:
    gate = GateSettings()
    for command, names in (("plan", ("alpha", "pairs")), ("simulate", ("alpha", "pairs", "rule"))):
        help = " ".join(reef(tmp_path, "gate", command, "--help", COLUMNS="200").out.split())
        for name in names:
            assert re.search(rf"--{name} [^\[]*\[default: {getattr(gate, name)}\]", help), (name, help)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    for words, said in (
        (("simulate", "--rule", "best"), "one of paired-e, wins, floor"),
        (("simulate", "--effect", "0.9"), "cannot differ"),
        (("plan", "--effect", "0.5", "--discordance", "0.1"), "differ at least that often"),
        (("plan", "--effect", "-0.5"), "nearer to 0"),
        (("plan", "--discordance", "3"), "'--discordance'"),
        (("plan", "--alpha", "2"), "alpha"),
    ):
        ran = reef(tmp_path, "gate", *words)
        assert ran.code == 2 and said in ran.err and "try:" in ran.err, ran
