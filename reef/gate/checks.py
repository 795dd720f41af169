"""The ``checks`` rule: measurements of a candidate by itself, each against a limit. What a weights recipe always asks for."""

from __future__ import annotations

from reef.core.artifacts import Candidate, Decision, Verdict


def checks_pass(candidate: Candidate) -> Verdict:
    """Accept when every measurement of the separate validation is within its limit."""
    failed = {name: check for name, check in candidate.checks.items() if not check.get("ok", False)}
    evidence = {"checks": {name: dict(check) for name, check in candidate.checks.items()}}
    if failed:
        said = ", ".join(f"{name} {check.get('value')} (limit {check.get('limit')})" for name, check in failed.items())
        return Verdict(Decision.REJECT, "checks", f"validation failed: {said}", evidence)
    return Verdict(Decision.ACCEPT, "checks", f"{len(candidate.checks)} checks passed", evidence)
