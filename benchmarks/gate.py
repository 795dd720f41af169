"""How often each rule publishes candidates of a known effect, and what that costs in pairs of episodes.

    python -m benchmarks.gate [--runs 4000] [--live-only]

The real rules of reef/gate on simulated episodes (reef/gate/simulate.py), and the bounds of live reports. Prints the tables of
docs/gate.md and writes
benchmarks/results/gate.json. Processor time only: nothing here depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from reef.gate import GateSettings, level_of
from reef.gate.live import compare
from reef.gate.simulate import simulate, typical

EFFECTS = (-0.05, 0.0, 0.05, 0.1, 0.2, 0.3)
ROWS: tuple[tuple[str, int, GateSettings, float | None], ...] = (
    ("wins, 3 tasks", 3, GateSettings(rule="wins"), None),
    ("wins, 10 tasks", 10, GateSettings(rule="wins"), None),
    ("wins, 200 tasks", 200, GateSettings(rule="wins"), None),
    ("paired-e, alpha 0.05 for one candidate", 20, GateSettings(), None),
    ("the same, at most 100 pairs", 20, GateSettings(pairs=100), None),
    ("the same, no screen", 20, GateSettings(screen=0), None),
    ("paired-e as it runs: 1st candidate", 20, GateSettings(), level_of(0.05, 1, 0)),
    ("paired-e as it runs: 10th, none published", 20, GateSettings(), level_of(0.05, 10, 0)),
    ("paired-e as it runs: 50th, none published", 20, GateSettings(), level_of(0.05, 50, 0)),
)


def live(runs: int) -> dict[str, float]:
    """A release whose reports pass 0.2 of the time after one of 0.6, and one that is no different."""
    seen: list[int] = []
    false = 0
    for run in range(runs):
        draw = random.Random(run)
        old = [float(draw.random() < 0.6) for _ in range(100)]
        same, worse = ([float(draw.random() < rate) for _ in range(200)] for rate in (0.6, 0.2))
        false += any(compare(same[:count], old).worse for count in range(1, 201, 5))
        seen.append(next((count for count in range(1, 201) if compare(worse[:count], old).worse), 201))
    return {"runs": runs, "false_alarms": false, "median_reports": sorted(seen)[runs // 2], "missed": seen.count(201)}


def main() -> None:
    """Print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--live-only", action="store_true")
    options = parser.parse_args()
    runs = options.runs
    watched = live(300)
    print(f"live reports, 0.6 to 0.2: {watched}")
    path = Path(__file__).parent / "results" / "gate.json"
    if options.live_only:
        kept = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**kept, "live": watched}, indent=1) + "\n", encoding="utf-8")
        return
    found: list[dict[str, object]] = []
    print("| rule | " + " | ".join(f"d = {effect:+.0%}" for effect in EFFECTS) + " |\n|---|" + "---|" * len(EFFECTS))
    for name, tasks, settings, level in ROWS:
        cells = []
        for effect in EFFECTS:
            one = simulate(settings, typical(tasks, effect), runs=runs, seed=1, level=level)
            cells.append(f"{one.published / runs:.3f} ({one.mean_pairs:.0f})")
            found.append({"rule": name, "effect": effect, "runs": runs, "published": one.published,
                          "inconclusive": one.inconclusive, "mean_pairs": one.mean_pairs})  # fmt: skip
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    path.write_text(json.dumps({"runs": runs, "rows": found, "live": watched}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
