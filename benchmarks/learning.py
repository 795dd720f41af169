"""Does it learn? The demo over seeds, with a null control whose scores are shuffled within each batch.

    python benchmarks/learning.py --behaviours plural question --seeds 5 --control plural --jobs 2

Prints one JSON document and writes it to benchmarks/results/learning.json. A gain is held-out score after less before, both by
sampling at temperature 1 on tasks that never trained; the bounds are Student's t over seeds, two-sided 95%.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reef.cli.pick import EMBEDDED_MODEL, models_folder
from reef.demo.run import Demo

RESULTS = Path(__file__).parent / "results" / "learning.json"
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def shuffled(scores: list[float], source: random.Random) -> list[float]:
    """The same scores on other answers: nothing is left to learn from."""
    return source.sample(scores, len(scores))


def one(behaviour: str, seed: int, control: bool) -> dict[str, object]:
    """One run of the demo in this process."""
    extra = {"rescore": shuffled} if control else {}
    demo = Demo(behaviour, models_folder() / EMBEDDED_MODEL, None, seed=seed, as_json=True, **extra)
    return {**demo.run(), "control": control}


def in_child(behaviour: str, seed: int, control: bool) -> dict[str, object]:
    """One run in a process of its own, so that several go on side by side."""
    arguments = [sys.executable, __file__, "--one", behaviour, str(seed), str(int(control))]
    ran = subprocess.run(arguments, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{behaviour} seed {seed} failed:\n{ran.stderr[-3000:]}")
    result: dict[str, object] = json.loads(ran.stdout.splitlines()[-1])
    gain = result["final"]["score"] - result["base"]["score"]  # type: ignore[index]
    kind = "control" if control else "learns"
    sys.stderr.write(f"{kind} {behaviour} seed {seed}: gain {gain:+.3f} in {result['seconds']} s\n")
    return result


def summary(results: list[dict[str, object]]) -> dict[str, float]:
    """Mean gain over seeds with its bounds."""
    gains = [one["final"]["score"] - one["base"]["score"] for one in results]  # type: ignore[index]
    half = T_95[len(gains)] * statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    mean = statistics.fmean(gains)
    return {
        "seeds": len(gains),
        "base": round(statistics.fmean(one["base"]["score"] for one in results), 4),  # type: ignore[index]
        "final": round(statistics.fmean(one["final"]["score"] for one in results), 4),  # type: ignore[index]
        "gain": round(mean, 4),
        "low": round(mean - half, 4),
        "high": round(mean + half, 4),
        "seconds": round(statistics.fmean(one["seconds"] for one in results), 1),  # type: ignore[arg-type, misc]
    }


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--behaviours", nargs="+", default=["plural", "question"])
    parser.add_argument("--control", default="plural", help="behaviour of the null control; empty for none")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--one", nargs=3, metavar=("BEHAVIOUR", "SEED", "CONTROL"))
    arguments = parser.parse_args()
    if arguments.one:
        behaviour, seed, control = arguments.one
        print(json.dumps(one(behaviour, int(seed), control == "1")))
        return
    runs = [(name, seed, False) for name in arguments.behaviours for seed in range(arguments.seeds)]
    if arguments.control:
        runs += [(arguments.control, seed, True) for seed in range(arguments.seeds)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda run: in_child(*run), runs))
    document = {
        "machine": {"system": platform.platform(), "python": platform.python_version(), "jobs": arguments.jobs},
        "behaviours": {
            name: summary([row for row in results if row["behaviour"] == name and not row["control"]])
            for name in arguments.behaviours
        },
        "control": summary([row for row in results if row["control"]]) if arguments.control else None,
        "runs": results,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: document[key] for key in ("machine", "behaviours", "control")}))


if __name__ == "__main__":
    main()
