"""E-values: exact where they can be, right at every look, and what the error budget adds up to."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.gate import level_of, share_of_budget
from reef.gate.evidence import Bets, fewest_bets, fewest_wins, log_e_sign
from reef.gate.live import compare, mean_bounds


@pytest.mark.parametrize("n", range(13))
def test_the_sign_e_value_is_one_on_average_under_a_fair_coin(n: int) -> None:
    mean = sum(math.comb(n, wins) / 2**n * math.exp(log_e_sign(wins, n - wins)) for wins in range(n + 1))
    assert mean == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (5, 2), (2, 5), (30, 12)])
def test_it_is_the_integral_over_all_chances_of_a_win(wins: int, losses: int) -> None:
    steps = 20_000
    at = [0.5 + (k + 0.5) / (2 * steps) for k in range(steps)]
    mean = sum(t**wins * (1 - t) ** losses for t in at) / steps
    assert log_e_sign(wins, losses) == pytest.approx(math.log(mean) + (wins + losses) * math.log(2), abs=1e-6)


@given(wins=st.integers(0, 150), losses=st.integers(0, 150))
def test_a_win_more_is_worth_more_and_a_loss_more_is_worth_less(wins: int, losses: int) -> None:
    assert log_e_sign(wins + 1, losses) > log_e_sign(wins, losses) > log_e_sign(wins, losses + 1)


def test_bets_never_gain_on_average_whatever_was_bet_before() -> None:
    for size in (1.0, 0.5, 0.1):
        paths = [list(path) for path in product((-size, 0.0, size), repeat=7)]
        total = 0.0
        for path in paths:
            bets = Bets()
            for difference in path:
                bets.add(difference)
            total += math.exp(bets.log_e)
        assert total / len(paths) == pytest.approx(1.0, rel=1e-12)


def test_fewest_wins() -> None:
    assert [fewest_wins(level) for level in (0.05, 0.01, 0.001)] == [7, 9, 13]
    for level in (0.05, 0.01, 0.001):
        needed = fewest_wins(level)
        assert math.exp(log_e_sign(needed, 0)) >= 1 / level > math.exp(log_e_sign(needed - 1, 0))


def test_fewest_bets() -> None:
    for level, difference in ((0.05, 1.0), (0.05, 1.9), (0.001, 0.3)):
        needed, bets = fewest_bets(level, difference), Bets()
        for _ in range(needed - 1):
            bets.add(difference)
        assert math.exp(bets.log_e) < 1 / level
        bets.add(difference)
        assert math.exp(bets.log_e) >= 1 / level


def test_the_error_budget_is_spent_once() -> None:
    assert sum(share_of_budget(number) for number in range(1, 200_000)) == pytest.approx(1.0, abs=2e-3)
    assert level_of(0.05, 1, 0) == pytest.approx(0.05 * 0.3828, abs=1e-4)
    assert level_of(0.05, 4, 2) == pytest.approx(3 * level_of(0.05, 4, 0))


def test_a_mean_lies_within_its_bounds_at_every_moment() -> None:
    outside = 0
    for run in range(400):
        draw = random.Random(run)
        scores = [float(draw.random() < 0.6) for _ in range(150)]
        bounds = (mean_bounds(scores[:count], 0.1) for count in range(1, 150))
        outside += any(not low <= 0.6 <= high for low, high in bounds)
    assert outside / 400 < 0.1


def test_live_reports_tell_a_worse_release_and_only_that() -> None:
    draw = random.Random(3)
    old, same, worse = ([float(draw.random() < rate) for _ in range(120)] for rate in (0.7, 0.7, 0.2))
    assert compare(worse, old).worse and not compare(same, old).worse and not compare(old, worse).worse
    assert not compare([], old).worse and not compare([0.0] * 3, [1.0] * 3).worse
    assert compare([], []).new is None and compare([], []).high == 1.0
