"""How steps of evolution are made and what they may cost. Values only; the recipe's knobs say what is in them."""

from __future__ import annotations

from dataclasses import dataclass

from reef.evolve.journal import Spent
from reef.gate import GateSettings


@dataclass(frozen=True, slots=True)
class EvolveSettings:
    """How steps are made: the recipe's knobs of these names. Limits of 0 are none; prices are for a million tokens."""

    kinds: frozenset[str]
    mode: str
    gate: GateSettings
    parallel: int
    retries: int
    retry_s: float
    outage_rounds: int
    max_steps: int
    max_calls: int
    max_minutes: float
    max_step_tokens: int
    max_cost: float
    price_in: float
    price_out: float
    prompt_chars: int
    grow_tasks: int

    def over(self, spent: Spent, seconds: float) -> str | None:
        """Which budget of a step is spent, in words; ``seconds`` are those that the step has taken."""
        cost = (spent.tokens_in * self.price_in + spent.tokens_out * self.price_out) / 1e6
        for name, used, limit in (
            ("max_calls", spent.calls, self.max_calls),
            ("max_minutes", seconds / 60, self.max_minutes),
            ("max_step_tokens", spent.tokens_in + spent.tokens_out, self.max_step_tokens),
            ("max_cost", cost, self.max_cost),
        ):
            if limit and used >= limit:
                return f"{name} is {limit:g}, and {used:.4g} are spent"
        return None
