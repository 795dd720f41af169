"""gate plan, simulate, show, replay: what a verdict costs, how often rules err, and what a release was judged by."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from reef.cli.bar import bar
from reef.cli.common import (
    SCHEMA_VERSION,
    HomeOption,
    JsonOption,
    ReleaseArgument,
    ScenarioOption,
    client_of,
    out,
    print_json,
    say,
    scenario_of,
    table,
    talk,
)
from reef.cli.pager import paged
from reef.core.artifacts import Decision
from reef.errors import BadRequest, Conflict

if TYPE_CHECKING:  # loaded by the commands that need it: most of what the command line does needs none of it
    from reef.gate import GateSettings
    from reef.gate.simulate import Population, Simulated

_PLANNED = 1000
"""Candidates that a plan simulates for each of its rows."""

gate_app = typer.Typer(no_args_is_help=True, help="How candidates are judged, what that costs, and how sure it is.")


class _Default:
    """The default of a setting of the gate, which is loaded when it is asked for or shown."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self) -> Any:
        from reef.gate import GateSettings

        return getattr(GateSettings(), self._name)

    def __str__(self) -> str:
        return str(self())


AlphaOption = Annotated[
    float,
    typer.Option(
        "--alpha", default_factory=_Default("alpha"), help="Share of published releases that may be no improvement."
    ),
]
PairsOption = Annotated[
    int, typer.Option("--pairs", default_factory=_Default("pairs"), help="Most pairs of episodes after the screen.")
]
RuleOption = Annotated[
    str, typer.Option("--rule", default_factory=_Default("rule"), help="paired-e, wins, mean or floor.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the simulated episodes.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(gate_app, name="gate")


@gate_app.command("plan")
def plan(
    *,
    effect: Annotated[float, typer.Option("--effect", help="How much better, in pass rate: 0.1 is ten points.")] = 0.1,
    discordance: Annotated[
        float, typer.Option("--discordance", min=0, max=1, help="Share of pairs whose sides differ.")
    ] = 0.3,
    pairs: PairsOption,
    alpha: AlphaOption,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Minutes one episode takes.")] = None,
    cost: Annotated[float | None, typer.Option("--cost", help="What one episode costs, in your currency.")] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """What it costs to see an effect, before anything is spent. Example: reef gate plan --effect 0.2 --minutes 2"""
    from reef.gate import GateSettings, level_of
    from reef.gate.evidence import fewest_wins
    from reef.gate.simulate import differing

    settings = GateSettings(alpha=alpha, pairs=pairs)
    population = _population(lambda: differing(effect, discordance))
    _say_that_it_takes_long(3 * _PLANNED)
    rows: list[dict[str, Any]] = []
    for number in (1, 10, 50):
        level = level_of(alpha, number, 0)
        needed = fewest_wins(level)
        row: dict[str, Any] = {
            "candidate": number,
            "level": level,
            "fewest_wins": needed,
            "published": 0.0,
            "mean_pairs": 0.0,
        }
        if needed <= pairs:
            found = _run(settings, population, _PLANNED, seed, level)
            row |= {"published": found.published / found.runs, "mean_pairs": found.mean_pairs}
        for name, each in (("minutes", minutes), ("cost", cost)):
            if each is not None:
                row[name] = 2 * each * row["mean_pairs"]
        rows.append(row)
    fixed = 6.18 * discordance / effect**2 if effect else None
    if as_json:
        print_json("plan", {"effect": effect, "discordance": discordance, "rows": rows, "fixed_sample_pairs": fixed})
        return
    extra = [name for name in ("minutes", "cost") if name in rows[0]]
    table(
        ("candidate", "level", "wins needed", "found", "pairs", *extra),
        (
            (
                f"number {row['candidate']}",
                f"{row['level']:.2g}",
                row["fewest_wins"],
                f"{row['published']:.0%}" if row["mean_pairs"] else "never",
                f"{row['mean_pairs']:.0f}" if row["mean_pairs"] else "-",
                *(f"{row[name]:.3g}" for name in extra),
            )
            for row in rows
        ),
        empty="",
    )
    for line in (
        f"found: how often a candidate that is {effect:+.0%} better is published; pairs: what one costs, found or not.",
        "The level shrinks with every candidate that was tested, and grows with every one that was published: of all",
        f"releases, at most {alpha:.0%} are expected to be no improvement. The screen is counted, protected tasks are not.",
    ):
        say(line)


@gate_app.command("simulate")
def simulate_rule(
    *,
    effect: Annotated[
        float, typer.Option("--effect", help="True difference of pass rates; 0 is a useless candidate.")
    ] = 0.0,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Candidates.")] = 1000,
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, help="Tasks: a third fails, a third passes, a third is flaky.")
    ] = 20,
    rule: RuleOption,
    pairs: PairsOption,
    alpha: AlphaOption,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """How often a rule publishes candidates of a known effect: the real rules, simulated episodes.

    Example: reef gate simulate --effect 0 --runs 2000 --rule wins
    """
    from reef.gate import GateSettings
    from reef.gate.simulate import typical

    settings = GateSettings(rule=rule, alpha=alpha, pairs=pairs)
    population = _population(lambda: typical(tasks, effect))
    _say_that_it_takes_long(runs)
    found = _run(settings, population, runs, seed, None)
    shown = {key: getattr(found, key) for key in ("published", "inconclusive", "runs", "mean_pairs")}
    if as_json:
        typer.echo(json.dumps({"schema": f"reef.simulation/{SCHEMA_VERSION}", **shown}))  # one line, also on a terminal
        return
    share = f"{found.published} of {runs} published ({found.published / runs:.1%})"
    out.print(
        Text(
            f"{rule}, effect {effect:+.0%}: {share}, {found.inconclusive} inconclusive, {found.mean_pairs:.1f} pairs each"
        )
    )


@gate_app.command("show")
@paged
def show(
    release_id: ReleaseArgument, scenario: ScenarioOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """What a release was judged by: every pair in its order, and the evidence after it. Example: reef gate show r3"""
    verdict = _verdict(release_id, scenario, home)
    if as_json:
        print_json("verdict", verdict)
        return
    out.print(Text(f"{release_id}  {verdict['decision']} by {verdict['rule']}: {verdict['reason']}"))
    evidence = verdict["evidence"]
    if "pairs" not in evidence:
        for name, check in evidence.get("checks", {}).items():
            out.print(
                Text(f"  {'✓' if check.get('ok') else '✗'} {name} {check.get('value')} (limit {check.get('limit')})")
            )
        return
    tested, tokens = iter(evidence["trajectory"]), any(len(pair) > 7 for pair in evidence["pairs"])
    table(
        ("pair", "stage", "task", "candidate", "incumbent", "log e", *(("tokens",) if tokens else ())),
        (
            (
                pair[0],
                pair[1],
                pair[2],
                f"{pair[5]:g}",
                f"{pair[6]:g}",
                f"{next(tested):+.2f}" if pair[1] == "test" and evidence["trajectory"] else "",
                *(" / ".join("?" if one is None else f"{one:,}" for one in pair[7:]),) * tokens,
            )
            for pair in evidence["pairs"]
        ),
        empty="no pair was run",
    )
    for task, score in evidence.get("given_away", {}).items():
        out.print(Text(f"  {task} scores {score:g} when nothing is done"))


@gate_app.command("replay")
def replay_release(
    release_id: ReleaseArgument, scenario: ScenarioOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Compute a release's verdict again from its receipt; exits 1 when it is another. Example: reef gate replay r3"""
    verdict = _verdict(release_id, scenario, home)
    if "pairs" not in verdict["evidence"]:
        raise BadRequest(
            f"{release_id} was judged by {verdict['rule']}, which compares no pairs", hint="see: reef gate show"
        )
    from reef.gate import replay

    again = replay(verdict["evidence"])
    # What the evidence accepts may be held for a person; the evidence itself is the same to the last bit, or it is not this one.
    same = all(verdict["evidence"].get(name) == value for name, value in again.evidence.items())
    same &= (
        verdict["decision"] in ("accept", "hold")
        if again.decision is Decision.ACCEPT
        else verdict["decision"] == again.decision.value
    )
    if as_json:
        print_json(
            "replay", {"release_id": release_id, "same": same, "decision": again.decision.value, "reason": again.reason}
        )
    if not same:
        raise Conflict(f"{release_id}: the receipt gives another verdict: {again.decision.value}, {again.reason}")
    if not as_json:
        out.print(
            Text(
                f"{release_id}: {again.decision.value} again, from {len(again.evidence['pairs'])} pairs: {again.reason}"
            )
        )


def _verdict(release_id: str, scenario: str | None, home: Path | None) -> dict[str, Any]:
    with client_of(home) as client:
        verdict: dict[str, Any] = client.release(scenario_of(client, scenario), release_id)["verdict"]
    if not verdict or not verdict.get("evidence"):
        raise BadRequest(
            f"{release_id} was not judged", hint="the first release and rollbacks are not; see: reef releases"
        )
    return verdict


def _say_that_it_takes_long(candidates: int) -> None:
    """Where no bar says it."""
    if not talk.is_terminal:
        say(f"simulating {candidates:,} candidates, which can take some seconds")


def _population(make: Callable[[], Population]) -> Population:
    try:
        return make()
    except ValueError as error:
        raise BadRequest(str(error), hint="choose an --effect nearer to 0") from error


def _run(settings: GateSettings, population: Population, runs: int, seed: int, level: float | None) -> Simulated:
    from reef.gate.simulate import simulate

    done = 0
    with bar(bytes=False) as move:

        def tick() -> None:
            nonlocal done
            done += 1
            move("candidates", done, runs)

        return simulate(settings, population, runs=runs, seed=seed, level=level, tick=tick)
