import itertools

import pytest

from gart.training.config import TrainConfig
from gart.training.schedule import Schedule


def schedule(**settings) -> Schedule:
    return Schedule.of(TrainConfig(**settings))


def test_a_full_run_takes_the_settings_as_they_are():
    s = schedule()
    assert (s.sh_every, s.densify_from, s.densify_until, s.densify_every) == (1000, 500, 25000, 100)
    assert [i for i in range(1, 30001) if s.densifies(i)][:2] == [500, 600]
    assert not s.densifies(25000)
    assert s.densifies(24900)
    long = schedule(iterations=60_000)
    assert (long.sh_every, long.densify_until) == (1000, 25000)


@pytest.mark.parametrize("iterations", [1, 2, 7, 20, 150, 1500, 2000, 7000, 15_000])
def test_a_short_run_shrinks_with_sane_minimums(iterations):
    s = schedule(iterations=iterations)
    degrees = [s.active_sh_degree(i) for i in range(1, iterations + 1)]
    assert degrees[0] == 0
    assert degrees == sorted(degrees)
    if iterations >= 6:
        assert degrees.index(3) <= iterations / 2
        assert min(degrees.index(d + 1) - degrees.index(d) for d in range(3)) >= min(
            200, iterations // 6
        )
    densified = [i for i in range(1, iterations + 1) if s.densifies(i)]
    if iterations >= 20:
        assert densified
    assert all(b - a >= min(50, iterations) for a, b in itertools.pairwise(densified))


def test_sh_degree_ramp():
    s = schedule()
    assert [s.active_sh_degree(i) for i in (1, 1000, 1001, 2000, 2001, 3001, 30000)] == [
        *(0, 0, 1, 1, 2, 3, 3)
    ]
    assert schedule(sh_degree=0).active_sh_degree(20_000) == 0


def test_means_lr_is_log_linear_between_its_ends():
    s = schedule(iterations=101)
    assert s.means_lr(1) == pytest.approx(1.6e-4)
    assert s.means_lr(51) == pytest.approx(1.6e-5)
    assert s.means_lr(101) == pytest.approx(1.6e-6)
    assert schedule(iterations=1).means_lr(1) == pytest.approx(1.6e-4)
    assert schedule(lr_means_final=0).means_lr(15_001) == pytest.approx(0.8e-4)


def test_growth_is_five_percent_and_stops_at_the_budget():
    s = schedule()
    assert s.target(100_000, 150_000) == 105_000
    assert s.target(149_000, 150_000) == 150_000
    assert s.target(150_000, 150_000) == 150_000
    assert schedule(growth=0).target(1000, 20_000) == 1000
    assert s.target(10, 5) == 10  # never fewer


def test_opacities_are_reset_at_the_first_densification_since():
    full = Schedule.of(TrainConfig(densify_until=15_000))
    due = [i for i in range(1, 15_000) if full.densifies(i) and full.resets(i)]
    assert due == [3000, 6000, 9000, 12_000]
    short = Schedule.of(TrainConfig(iterations=7000))
    due = [i for i in range(1, 7000) if short.densifies(i) and short.resets(i)]
    assert [i // 700 for i in due] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not any(Schedule.of(TrainConfig(iterations=60)).resets(i) for i in range(1, 61))
