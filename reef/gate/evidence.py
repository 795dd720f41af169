"""E-values: how much paired results speak for a candidate. Pure arithmetic; nothing here knows what a task is.

An e-value is the factor by which somebody who bets against "the candidate is no better" has multiplied their stake. Under that
hypothesis it stays below 1/alpha for ever with probability at least 1 - alpha (Ville 1939), however often one looks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

_LARGEST_BET = 0.5


@lru_cache(maxsize=100_000)
def log_e_sign(wins: int, losses: int) -> float:
    """Log e-value of ``wins`` and ``losses`` among pairs that differ; ties say nothing of the direction.

    The likelihood ratio against a fair coin, averaged over all chances of a win in (1/2, 1):
    2^(n+1) * integral of t^w (1-t)^l dt from 1/2 to 1. For whole counts that is the sum of the binomial coefficients
    C(n+1, 0..w), over (n+1) C(n, w): counted exactly, so that a replay gives the same bits.
    """
    n = wins + losses
    total = sum(math.comb(n + 1, k) for k in range(wins + 1))
    return math.log(total) - math.log((n + 1) * math.comb(n, wins))


@dataclass(slots=True)
class Bets:
    """The product of 1 + bet * difference over differences above -2, each bet made before its difference is seen.

    Bets follow mean / (variance + mean^2) of what was seen so far, within [0, 1/2] (Waudby-Smith and Ramdas 2024, aGRAPA),
    starting from a mean of 0 and a variance of 1/4.
    """

    log_e: float = 0.0
    _count: int = 1
    _sum: float = 0.0
    _squares: float = 0.25

    def add(self, difference: float) -> None:
        """Bet on one more difference."""
        mean = self._sum / self._count
        variance = self._squares / self._count
        bet = min(max(mean / (variance + mean * mean), 0.0), _LARGEST_BET)
        self.log_e += math.log1p(bet * difference)
        self._count += 1
        self._sum += difference
        self._squares += (difference - self._sum / self._count) ** 2


def fewest_wins(level: float) -> int:
    """How many wins without a loss reach an e-value of 1/``level``: no candidate can be published with fewer pairs."""
    wins = 0
    while log_e_sign(wins, 0) < -math.log(level):
        wins += 1
    return wins


def fewest_bets(level: float, difference: float) -> int:
    """How many bets reach an e-value of 1/``level`` when each ends as well as one can, with ``difference`` (above 0)."""
    bets, count = Bets(), 0
    while bets.log_e < -math.log(level):
        bets.add(difference)
        count += 1
    return count


_ZETA_1_5 = 2.612375348685488
"""Sum of k^-1.5."""


def share_of_budget(number: int) -> float:
    """The share of the error budget that the ``number``-th tested candidate gets (1 for the first); they sum to 1."""
    return 1.0 / (number * math.sqrt(number) * _ZETA_1_5)


def level_of(alpha: float, number: int, published: int) -> float:
    """The level for the ``number``-th candidate tested in a scenario that has ``published`` some before (e-LOND).

    Xu and Ramdas 2024: of everything ever published, at most a share of ``alpha`` is expected to be no improvement, whatever
    proposes the candidates and however they depend on each other.
    """
    return alpha * share_of_budget(number) * (published + 1)
