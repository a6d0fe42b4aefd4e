"""Rates, their spread and their growth from samples of a counter; slots for a steady stream by Erlang's formula."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.scaler.policy.forecast import Forecast, dispersion, forecast, growth, slots_for
from penstock.scaler.policy.signals import SAMPLES, Sample, rate_over

Counts = list[tuple[float, int]]
LOOKS = [5.0 * n for n in range(SAMPLES)]
LONG = [5.0 * n for n in range(2001)]  # it takes many looks to estimate a variance


def counted(arrivals: list[float], looks: list[float]) -> Counts:
    found, n = [], 0
    for at in looks:
        while n < len(arrivals) and arrivals[n] <= at:
            n += 1
        found.append((at, n))
    return found


def poisson(rate: float, until: float, random: Random) -> list[float]:
    found, at = [], random.expovariate(rate)
    while at < until:
        found.append(at)
        at += random.expovariate(rate)
    return found


def steady(rate: float, looks: list[float]) -> list[Sample]:
    return [Sample(at, 0, arrived=round(rate * at)) for at in looks]


# -- Rates -------------------------------------------------------------------------------------------------------------

UNEVEN: Counts = [(0.0, 0), (4.0, 40), (5.0, 41), (65.0, 101), (68.0, 107), (71.0, 113)]


@pytest.mark.parametrize(
    ("seconds", "rate"), [(1.0, 2.0), (3.0, 2.0), (6.0, 12 / 6), (15.0, 2.0), (66.0, 72 / 66), (70.0, 73 / 67)]
)
def test_a_rate_is_that_of_the_window_however_uneven_the_looks(seconds: float, rate: float) -> None:
    assert rate_over(UNEVEN, seconds) == pytest.approx(rate)


def test_two_looks_farther_apart_than_the_window_are_better_than_none() -> None:
    assert rate_over([(0.0, 0), (60.0, 30)], 15.0) == 0.5


def test_one_look_or_two_at_once_make_no_rate() -> None:
    assert rate_over([], 15.0) is rate_over([(0.0, 5)], 15.0) is None
    assert rate_over([(0.0, 5), (5e-324, 2**62)], 15.0) is None


@given(st.lists(st.integers(1, 6000), min_size=2, max_size=60), st.floats(0.01, 600))
def test_a_steady_stream_has_its_rate_however_one_looks(gaps: list[int], seconds: float) -> None:
    counts, at = [], 0
    for gap in gaps:
        at += gap
        counts.append((at / 100, 3 * at))
    assert rate_over(counts, seconds) == pytest.approx(300)
    assert dispersion(counts) == 1.0


def test_what_was_announced_is_not_forecast_again() -> None:
    looks = [Sample(at, 0, arrived=round(12 * at), announced=round(10 * at)) for at in LOOKS]
    assert forecast(looks) == forecast(steady(2.0, LOOKS))
    batch = [Sample(at, 0, arrived=500 if at >= 290 else 0, announced=500 if at >= 290 else 0) for at in LOOKS]
    assert forecast(batch).rate == 0.0


def test_a_small_change_is_smoothed_and_a_large_one_counts() -> None:
    def after(rate: float) -> Forecast:
        """A forecast after ten arrivals a second, and another rate for the last 15 seconds."""
        return forecast([Sample(at, 0, arrived=round(10 * at + (rate - 10) * max(0.0, at - 285))) for at in LOOKS])

    assert after(10).rate == after(10).steady == 10
    assert after(11).rate == pytest.approx(10.125), "the mean of two minutes"
    assert after(40).rate == 40
    assert after(40).steady == pytest.approx(13.75), "the surge may be over soon"
    assert after(0).rate == after(0).steady == 0, "a fall counts at once"


def test_growth_goes_on_and_ever_more_slowly() -> None:
    rising = [Sample(at, 0, arrived=round(0.05 * at * at)) for at in LOOKS]  # the rate rises by 0.1 every second
    coming = forecast(rising)
    assert coming.growth == pytest.approx(0.1, rel=0.1)
    assert forecast(steady(10.0, LOOKS)).growth == 0.0
    assert forecast(rising[-20:]).growth == 0.0, "the time is too short to tell"
    assert forecast([Sample(at, 0, arrived=round(30 * at - 0.05 * at * at)) for at in LOOKS]).growth == 0.0
    known = Forecast(10.0, 10.0, 0.1, 1.0)
    assert known.expected(10) == pytest.approx(10 * 10 + 0.1 * 10 * 10 / 2)
    assert known.expected(120) == pytest.approx(1200 + 0.1 * 120 * 120 / 2)
    assert known.expected(220) - known.expected(120) == pytest.approx(100 * (10 + 0.1 * 120)), (
        "it does not grow after two minutes"
    )


def test_growth_that_may_be_chance_is_none() -> None:
    counts = [(at, round(10 * at + 0.001 * at * at)) for at in LOOKS]
    assert growth(counts, noise=0.1) > 0
    assert growth(counts, noise=10.0) == 0


def test_a_margin_is_standard_deviations_of_the_count() -> None:
    assert Forecast(10.0, 10.0, 0.0, 4.0).at_most(10, 2) == 100 + 2 * math.sqrt(4 * 100)
    assert Forecast(10.0, 10.0, 0.0, 4.0).at_most(0, 2) == 0


# -- Dispersion --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 5.0, 50.0])
def test_arrivals_by_chance_have_dispersion_1(rate: float) -> None:
    arrivals = poisson(rate, LONG[-1], Random(3))
    assert dispersion(counted(arrivals, LONG)) == pytest.approx(1.0, abs=0.08)


@pytest.mark.parametrize("size", [4, 10])
def test_bursts_are_as_dispersed_as_they_are_large(size: int) -> None:
    arrivals = [at for at in poisson(2.0, LONG[-1], Random(3)) for _ in range(size)]
    assert dispersion(counted(arrivals, LONG)) == pytest.approx(size, rel=0.1)


def test_a_look_that_was_late_is_no_dispersion() -> None:
    """After an outage of metrics one gap is twenty times as long as the others, and its count as large."""
    arrivals = poisson(5.0, LOOKS[-1], Random(3))
    late = counted(arrivals, [at for at in LOOKS if not 100 < at < 200])
    assert dispersion(late) == pytest.approx(dispersion(counted(arrivals, LOOKS)), abs=0.3)
    random = Random(4)
    uneven = [at for at in LONG if random.random() < 0.3]
    assert dispersion(counted(poisson(5.0, LONG[-1], random), uneven)) == pytest.approx(1.0, abs=0.12)


def test_a_slow_change_is_no_dispersion() -> None:
    assert dispersion([(at, round(0.05 * at * at)) for at in LOOKS]) == 1.0


def test_few_looks_tell_no_dispersion_and_none_is_endless() -> None:
    assert dispersion([(5.0 * n, n * n * n) for n in range(8)]) == 1.0
    assert dispersion([(5.0 * n, 10**9 * (n // 10)) for n in range(40)]) == 25.0
    assert dispersion([(5.0 * n, -n) for n in range(40)]) == 1.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 5e-324, 1e-6, 0.001, 5.0, 1e6]) | st.floats(0, 60),
            st.integers(0, 5) | st.integers(0, 2**62),
            st.integers(0, 2**62),
        ),
        max_size=30,
    ),
    st.floats(0, 3e8),
)
def test_a_forecast_is_a_number_whatever_is_seen(looks: list[tuple[float, int, int]], seconds: float) -> None:
    samples, at = [], 0.0
    for gap, arrived, announced in looks:
        at += gap
        samples.append(Sample(at, 0, arrived=arrived, announced=announced))
    coming = forecast(samples)
    assert 0 <= coming.steady <= coming.rate < math.inf
    assert 0 <= coming.growth < math.inf
    assert 1 <= coming.dispersion <= 25
    assert 0 <= coming.expected(seconds) <= coming.at_most(seconds, 1.0) < math.inf


# -- Erlang ------------------------------------------------------------------------------------------------------------


def late_by_the_book(slots: int, load: float, wait: float, service: float) -> float:
    """Returns the share that waits longer than `wait`, as Erlang's formula is written."""
    full = load**slots / math.factorial(slots) * slots / (slots - load)
    waits = full / (sum(load**n / math.factorial(n) for n in range(slots)) + full)
    return waits * math.exp(-(slots - load) * wait / service)


def slots_by_the_book(load: float, wait: float, service: float, share: float) -> int:
    slots = math.floor(load) + 1
    while late_by_the_book(slots, load, wait, service) > share:
        slots += 1
    return slots


@settings(max_examples=300, deadline=None)
@given(st.floats(0.01, 40), st.floats(0.1, 100), st.floats(0, 60), st.floats(1e-4, 0.5))
def test_slots_for_a_stream_are_erlangs(load: float, service: float, wait: float, share: float) -> None:
    found = slots_for(load / service, service, wait, share, most=10_000)
    assert found == slots_by_the_book(load, wait, service, share) or math.isclose(
        late_by_the_book(min(found, slots_by_the_book(load, wait, service, share)), load, wait, service), share
    )


def test_a_known_number() -> None:
    """If four of five slots are busy on average, 55.41 % wait, and e^-1 of these longer than one service time."""
    assert late_by_the_book(5, 4.0, 0.0, 1.0) == pytest.approx(0.5541, abs=5e-5)
    assert slots_for(4.0, 1.0, 0.0, 0.5542, most=99) == 5
    assert slots_for(4.0, 1.0, 0.0, 0.5541, most=99) == 6
    assert slots_for(4.0, 1.0, 1.0, 0.5542 / math.e, most=99) == 5


@pytest.mark.parametrize("load", [63.9, 64.0, 100.3, 1000.0, 54_321.5])
def test_a_large_load_is_exact_too(load: float) -> None:
    """The product does not begin at the first slot; the test begins there."""
    for wait, share in ((0.0, 0.2), (0.1, 0.01), (3.0, 1e-6)):
        blocked, slots, waiting = 1.0, 0, 1.0
        while slots <= load or waiting * math.exp(-(slots - load) * wait) > share:
            slots += 1
            blocked = load * blocked / (slots + load * blocked)
            waiting = slots * blocked / (slots - load * (1 - blocked)) if slots > load else 1.0
        assert slots_for(load, 1.0, wait, share, most=10**10) == slots


def test_no_arrivals_and_too_many() -> None:
    assert slots_for(0.0, 5.0, 1.0, 0.01, most=10) == 0
    assert slots_for(2.0, 5.0, 1.0, 0.01, most=10) == 10
    assert slots_for(1e20, 3e8, 1.0, 0.01, most=10) == 10
    assert slots_for(0.99, 10.0, 0.0, 1e-9, most=10) == 10, "that is not enough, but it is the maximum"
    assert 10**8 < slots_for(1e8, 1.0, 1.0, 0.01, most=10**10) < 10**8 + 10**4


RISING = st.lists(st.floats(0.001, 300), min_size=2, max_size=2).map(sorted)


@settings(max_examples=200, deadline=None)
@given(RISING, RISING, RISING, st.floats(0.1, 30), st.floats(1e-4, 0.9))
def test_more_load_or_less_patience_never_needs_fewer(
    rates: list[float], services: list[float], waits: list[float], variability: float, share: float
) -> None:
    def needed(rate: float, service: float, wait: float, share: float) -> int:
        return slots_for(rate, service, wait, share, variability=variability, most=10**9)

    assume(rates[1] * services[1] < 5000)
    (rate, more), (service, slower), (shorter, wait) = rates, services, waits
    least = needed(rate, service, wait, share)
    assert least <= needed(more, service, wait, share)
    assert least <= needed(rate, slower, wait, share)
    assert least <= needed(rate, service, shorter, share)
    assert least <= needed(rate, service, wait, share / 2)
    assert least > rate * service


def test_the_more_arrivals_and_services_vary_the_more_slots() -> None:
    found = [slots_for(20.0, 1.0, 2.0, 0.005, variability=one, most=999) for one in (0.0, 0.5, 1.0, 4.0, 25.0)]
    assert all(one <= other for one, other in pairwise(found))
    assert found[0] < found[-1]
