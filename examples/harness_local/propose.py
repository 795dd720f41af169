"""A proposer that asks no model: what several reports ask for in the same words becomes part of the command."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from reef.evolve.values import ProposeContext, Refusal

COMMAND = "answer"
ASKED_BY = 2
"""So many reports must say a sentence: one alone may be about that one answer."""
MOST = 3


def propose(context: ProposeContext) -> dict[str, Any]:
    """Add what is said most often to ``agent_command/answer``; raises Refusal when no two reports agree on anything new."""
    said: Counter[str] = Counter()
    for run in context.runs:
        said.update(dict.fromkeys(re.split(r"(?<=[.!?])\s+", run.feedback.strip()), 1))
    now = context.tree.get("agent_command", COMMAND).text.rstrip()
    wanted = [sentence for sentence, count in said.most_common() if count >= ASKED_BY and sentence not in now][:MOST]
    if not wanted:
        raise Refusal("no two reports ask for the same thing that the command does not ask for yet")
    edit = {"action": "put", "kind": "agent_command", "name": COMMAND, "text": " ".join([now, *wanted]) + "\n"}
    return {"why": f"asked for by {said[wanted[0]]} of {len(context.runs)} reports", "edits": [edit]}
