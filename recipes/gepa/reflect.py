"""The proposer of recipe gepa: shows the deployment's model one entry of the harness and how it did, and asks for a new text."""

from __future__ import annotations

from collections.abc import Mapping

from reef.evolve.propose import ending, read_answer
from reef.evolve.values import Proposal, ProposeContext, Refusal, proposal_of

SYSTEM = """You improve the harness of an AI agent: the texts that are put into its prompt. You are shown one entry of it, what
the agent did with it on some tasks, and how that was judged. Find out what the agent lacked, and write the entry anew so that it
helps with all work of this kind. Keep what is right in it: facts that the judgments bring to light belong into it.

Answer with one JSON object and nothing else:
{"why": "one or two sentences", "text": "the whole new text of the entry"}

A skill's text begins with a front matter:
---
name: NAME
description: when to use it, in one sentence
---
Do not copy sentences of a single task into it, and no keys or addresses."""


def propose(context: ProposeContext) -> Proposal:
    """One question, one answer, read strictly; raises Refusal for an answer that is none."""
    if context.target is None:
        raise Refusal("this proposer rewrites one entry, and none was named")
    found = read_answer(context.ask(SYSTEM, question(context)))
    if not isinstance(found, Mapping) or set(found) - {"why", "text"} or not isinstance(found.get("text"), str):
        raise Refusal("the answer has why and text, both as text, and nothing else")
    kind, name = context.target
    return proposal_of({"why": found.get("why", ""), "edits": [{"kind": kind, "name": name, "text": found["text"]}]})


def question(context: ProposeContext) -> str:
    """What the model is shown, in order: the entry, the other entries, the runs, earlier proposals, the request."""
    assert context.target is not None
    kind, name = context.target
    texts = {(one.kind, one.name): one.text.strip() for one in context.tree}
    parts = [f"# The entry to write anew: {kind}/{name}\n{texts.pop((kind, name), '(it does not exist yet)')}"]
    if texts:
        parts.append("# The rest of the harness, which stays as it is")
        parts += [f"## {one}/{other}\n{text}" for (one, other), text in texts.items()]
    for number, run in enumerate(context.runs, start=1):
        score = "no score" if run.score is None else f"score {run.score:g}"
        parts.append(f"# Run {number} ({score})\nHow it was judged: {run.feedback or '(no words)'}\n\n{run.text}")
    return "\n\n".join([*parts, *ending(context)])
