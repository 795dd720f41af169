"""How often each rule publishes candidates of a known effect, and what that costs in pairs of episodes.

    python -m benchmarks.gate [--runs 4000]

The real rules of reef/gate on simulated episodes (reef/gate/simulate.py). Prints the tables of docs/gate.md and writes
benchmarks/results/gate.json. Processor time only: nothing here depends on the machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from reef.gate import GateSettings, level_of
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


def main() -> None:
    """Print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000)
    runs = parser.parse_args().runs
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
    path = Path(__file__).parent / "results" / "gate.json"
    path.write_text(json.dumps({"runs": runs, "rows": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
