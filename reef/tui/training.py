"""What training is at, as lines: rewards, the loop, the funnel from reports to releases, the gate's evidence. Pure."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reef.tui.chain import reward_of
from reef.tui.chart import Series, plot
from reef.tui.store import Snapshot
from reef.tui.symbols import Symbols, gauge
from reef.tui.text import Line, clock, number, one

Data = Mapping[str, Any]

_BESIDE = (("held_out_mean", "held-out"), ("incumbent_mean", "served"))
"""Metrics that are drawn beside the reward, the first one there is, and what they are called."""
STATES = {"training": "accent", "held": "warn", "blocked": "bad", "failed": "bad", "paused": "warn"}
_BAR = 24


# -- rewards


def rewards(steps: Sequence[Data], last: int | None, *, log: bool = False) -> tuple[list[Series], str]:
    """Reward by step of the ``last`` steps (newest first, None for all), and the name of what is drawn beside it."""
    shown = list(reversed(steps[:last]))
    beside = next((pair for pair in _BESIDE if any(pair[0] in step["metrics"] for step in shown)), ("", ""))
    mine = [(float(step["step"]), value) for step in shown if (value := reward_of(step)) is not None]
    other = [
        (float(step["step"]), float(value))
        for step in shown
        if isinstance(value := step["metrics"].get(beside[0]), int | float)
    ]
    found = [Series(mine), Series(other, "warn", "o", dashed=True)] if other else [Series(mine)]
    if log:
        found = [replace(one, points=[(x, math.log10(y)) for x, y in one.points]) for one in found]
    return found, beside[1]


def above_zero(steps: Sequence[Data]) -> bool:
    """A logarithm can be taken of everything that is drawn."""
    return all(y > 0 for one in rewards(steps, None)[0] for _, y in one.points)


def csv_lines(steps: Sequence[Data]) -> list[str]:
    """Steps with all their metrics, oldest first."""
    names = sorted({name for step in steps for name in step["metrics"]})
    first = ["step", "created_at", "outcome", "release_id", "reason"]
    lines = []
    for row in [[*first, *names], *([*(step[name] for name in first), *(step["metrics"].get(name) for name in names)]
                                    for step in reversed(steps))]:  # fmt: skip
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(row)
        lines.append(text.getvalue())
    return lines


# -- the loop


def loop_lines(snapshot: Snapshot, symbols: Symbols) -> list[Line]:
    """Where the loop stands, what fills the next batch, and what does not."""
    row = snapshot.chosen
    if not row:
        return [one("no scenario yet", "dim")]
    state, batch, evolving = str(row["state"]), row["batch"], row.get("evolving") or {}
    mark = symbols.busy if state == "training" else symbols.serving if state == "idle" else symbols.held
    lines: list[Line] = [((f"step {row['step']}  ", "bold"), (f"{mark} {state}", STATES.get(state, "dim")))]
    if detail := row.get("detail"):
        lines.append(one(detail, STATES.get(state, "")))
    if most := evolving.get("pairs_at_most"):
        pairs = int(evolving.get("pairs") or 0)
        lines.append(((gauge(pairs, most, 10, symbols), "accent"), (f" {pairs}/{most} pairs", "")))
    if minutes := evolving.get("minutes_at_most"):
        lines.append((("eta      ", "dim"), (f"at most {minutes:,.1f} min in all", "")))
    lines.append(())
    if batch["need"]:
        lines.append(
            (("batch    ", "dim"), (f"{batch['have']}/{batch['need']} ", ""),
             (gauge(batch["have"], batch["need"], 8, symbols), "accent"))
        )  # fmt: skip
    counts = row["counts"].get("report", {})
    for name, state_name, kind in (
        ("waiting", "parked", "warn"), ("accepted", "accepted", "good"), ("trained", "consumed", "good"),
        ("skipped", "refused", "bad"),
    ):  # fmt: skip
        if count := counts.get(state_name, 0):
            lines.append(((f"{name:9}", "dim"), (f"{count:,} report{'s' * (count != 1)}", kind)))
    lines += [((" " * 9, ""), (f"{count:,} {code}", "dim")) for code, count in list(row["reasons"].items())[:5]]
    if snapshot.steps:
        lines += [(), *_last_step(snapshot.steps[0])]
    if drafts := evolving.get("drafts"):
        lines.append((("drafts   ", "dim"), (f"{drafts} tasks need a check", "warn")))
    return [*lines, (), (("waits for ", "dim"), (str(row["waiting_for"]), ""))]


def _last_step(step: Data) -> list[Line]:
    kind = "good" if step["outcome"] == "release" else "warn"
    said = " ".join(str(part) for part in (step["outcome"], step["release_id"]) if part)
    lines: list[Line] = [((f"step {step['step']:<4}", "dim"), (said, kind), (f"  {clock(step['created_at'])}", "dim"))]
    if reason := step["reason"] or (step["verdict"] or {}).get("reason"):
        lines.append(((" " * 9, ""), (str(reason), "")))
    shown = [f"{name} {number(step['metrics'][name])}" for name in ("loss", "kl_parent") if name in step["metrics"]]
    return [*lines, ((" " * 9, ""), ("  ".join(shown), "dim"))] if shown else lines


# -- the funnel


def why(snapshot: Snapshot) -> str:
    """One sentence: why nothing is training, in the daemon's words; or that it is."""
    row = snapshot.chosen
    if not row:
        return "Nothing is training: there is no scenario yet."
    state, detail = str(row["state"]), str(row.get("detail") or "")
    if state == "training":
        return f"It is training: {detail or 'a step is being made'}."
    because = f" ({detail})" if detail and state != "idle" else ""
    said = f"Nothing is training: it waits for {row['waiting_for']}{because}."
    if found := row["reasons"]:
        code, count = max(found.items(), key=lambda pair: pair[1])
        said += f" Of its reports {sum(found.values()):,} do not train, most often ({count:,}) because of {code}."
    return said


def funnel_lines(snapshot: Snapshot, symbols: Symbols) -> list[Line]:
    """How many get from each stage to the next, and what most often stops the others."""
    row, steps = snapshot.chosen, snapshot.steps
    if not row:
        return [one(why(snapshot), "bold")]
    counts, batch = row["counts"].get("report", {}), row["batch"]
    next_one = f"the next batch has {batch['have']} of {batch['need']}" if batch["need"] else ""
    reports = sum(counts.values())
    made = [step for step in steps if step["outcome"] == "release"]
    judged = [step for step in made if step["verdict"]]
    names = {step["release_id"] for step in made}
    kept = [one for one in snapshot.releases if one["release_id"] in names and one["state"] not in ("held", "rejected")]
    lost = [one for one in snapshot.releases if one["release_id"] in names and one["state"] in ("held", "rejected")]
    top = next(iter(row["reasons"].items()), None)
    ended = Counter(str(step["reason"] or step["outcome"]) for step in steps if step["outcome"] != "release")
    stages: list[tuple[str, int, str]] = [
        ("reports", reports, f"{top[1]:,} do not train, most often: {top[0]}" if top else ""),
        ("trained on", counts.get("consumed", 0), next_one),
        ("batches", len(steps), _most(ended, "made no candidate")),
        ("candidates", len(made), f"{len(made) - len(judged)} were not judged" if len(made) > len(judged) else ""),
        ("evaluated", len(judged), _not_published(lost)),
        ("published", len(kept), ""),
    ]  # fmt: skip
    lines: list[Line] = [one(why(snapshot), "bold"), ()]
    for at, (name, count, reason) in enumerate(stages):
        scale = max(1, stages[0][1] if at < 2 else len(steps))  # reports are many, batches are made of them
        lines.append(((f"{name:11}", ""), (f"{count:>7,} ", "bold"), (gauge(count, scale, _BAR, symbols), "accent")))
        if reason:
            lines.append(((" " * 19, ""), (reason, "dim")))
    if len(steps) >= 200:
        lines += [(), one("batches and below: of the newest 200 steps", "dim")]
    return lines


def _most(found: Counter[str], said: str) -> str:
    if not found:
        return ""
    reason, count = found.most_common(1)[0]
    return f"{found.total():,} {said}, most often ({count:,}): {reason}"


def _not_published(lost: Sequence[Data]) -> str:
    if not lost:
        return ""
    states = Counter(str(release["state"]) for release in lost)
    newest = lost[0]
    reason = (newest.get("verdict") or {}).get("reason") or "no reason was given"
    said = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return f"{said}; the newest, {newest['release_id']}: {reason}"


# -- the gate


def judged(snapshot: Snapshot) -> list[Data]:
    """What the gate view can show, newest first: the candidate in hand, then each release that was judged."""
    evolving = snapshot.chosen.get("evolving") or {}
    running = [{"release_id": "in the making", "evolving": evolving}] if "pairs" in evolving else []
    return [*running, *(release for release in snapshot.releases if release.get("verdict"))]


def gate_lines(release: Data | None, snapshot: Snapshot, width: int, height: int, symbols: Symbols) -> list[Line]:
    """The evidence for one candidate as it grew, with what was needed, or what its checks found."""
    lines = _verdict(release, snapshot.chosen)
    budget = _budget((snapshot.chosen.get("evolving") or {}).get("error_budget"), symbols)
    found = _trajectory(release or {})
    if found is not None:
        trajectory, level = found
        points = [(float(at), value) for at, value in enumerate(trajectory, 1)]
        room = height - sum(1 + sum(len(text) for text, _ in line) // max(1, width) for line in [*lines, *budget])
        drawn = plot(
            [Series(points)], width, max(3, room), ascii_only=symbols.plain, level=-math.log(level),
            label=lambda value: f"{math.exp(min(value, 700)):.3g}", empty="no fresh pair has been run yet",
        )  # fmt: skip
        lines += drawn
    return [*lines, *budget]


def _verdict(release: Data | None, row: Data) -> list[Line]:
    if release is None:
        if row.get("surface") == "weights":
            return [
                one("This recipe trains weights: its candidates are not compared in pairs."),
                one("Each passes checks before it is served, and they are shown here.", "dim"), (),
            ]  # fmt: skip
        return [one("No candidate has been judged yet.", "dim"), ()]
    verdict = release.get("verdict") or {}
    if not verdict:
        evolving = release["evolving"]
        return [
            one(f"{evolving.get('phase')}: {evolving['pairs']} of at most {evolving['pairs_at_most']} pairs", "accent")
        ]
    kind = {"accept": "good", "hold": "warn"}.get(str(verdict.get("decision")), "bad")
    lines: list[Line] = [
        ((f"{verdict.get('decision')} ", kind), (f"by {verdict.get('rule')}: {verdict.get('reason')}", ""))
    ]  # fmt: skip
    evidence = verdict.get("evidence") or {}
    if pairs := evidence.get("pairs"):
        stages = Counter(str(pair[1]) for pair in pairs)
        sides = Counter("won" if pair[5] > pair[6] else "lost" if pair[5] < pair[6] else "equal" for pair in pairs)
        said = ", ".join(f"{count} {name}" for name, count in stages.items())
        lines.append(one(f"pairs: {said}   " + ", ".join(f"{sides[name]} {name}" for name in ("won", "lost", "equal"))))
    else:
        lines.append(one("It was not compared in pairs: this is what was checked.", "dim"))
        lines += [
            ((f"  {'ok ' if check.get('ok') else 'NOT'} {name:20}", "good" if check.get("ok") else "bad"),
             (f" {check.get('value')}   limit {check.get('limit')}", ""))
            for name, check in (evidence.get("checks") or {}).items()
        ]  # fmt: skip
    return [*lines, ()]


def _trajectory(release: Data) -> tuple[Sequence[float], float] | None:
    """Log E after each fresh pair, and the level; None where no such test was made."""
    evidence = (release.get("verdict") or {}).get("evidence") or release.get("evolving") or {}
    level = evidence.get("level")
    if not isinstance(evidence.get("trajectory"), list) or not level:
        return None
    if not evidence["trajectory"] and "verdict" in release:
        return None
    return evidence["trajectory"], float(level)


def needed(release: Data | None) -> str:
    """What E has to reach, in words."""
    found = _trajectory(release or {})
    return "" if found is None else f"E needs {1 / found[1]:.3g}"


def _budget(budget: Data | None, symbols: Symbols) -> list[Line]:
    if not budget:
        return []
    used, alpha = float(budget["used"]), float(budget["alpha"])
    tested = f"{budget['tests']} tested, {budget['published']} published"
    return [
        (("error budget ", "dim"), (gauge(round(used * 100), 100, 10, symbols), "accent"), (f" {used:.0%} of {alpha:g}", "")),
        one(f"{tested}; the next needs E {1 / float(budget['next_level']):.3g}", "dim"),
    ]  # fmt: skip
