"""Seconds from one batch: positive, of the right batches, and summed as a fit takes them. No time is asserted."""

import pytest
import torch
from torch import nn

from slu import SLU
from slu.diagnosis import timing as module
from slu.diagnosis.timing import Passes, Timing, measure, measure_passes
from untouched import assert_same, snapshot


def subject():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), torch.randn(12, 8)


def test_everything_is_measured_and_the_model_is_as_before():
    model, inputs = subject()
    before = snapshot(model)
    timing = measure(SLU(model, "classification"), (inputs, torch.arange(12) % 3))
    assert timing.passes.points == 12
    assert min(timing.passes.forward, timing.passes.backward, timing.query, timing.fit) > 0 and timing.start >= 0
    assert_same(before, snapshot(model))


def test_of_a_loader_the_first_batch_counts():
    model, inputs = subject()
    method = SLU(model, "classification")
    assert measure(method, [inputs[:5], inputs]).passes.points == 5
    assert measure_passes(method.network, iter([inputs[:4]])).points == 4


def test_a_fit_is_the_sum_of_its_parts():
    timing = Timing(Passes(points=10, forward=1.0, backward=3.0), query=5.0, fit=7.0, start=100.0)
    assert timing.query_seconds(40) == 20
    # A tenth is held out and asked; the scale takes a gradient of 300 points, and of 512 at most.
    assert timing.fit_seconds(300) == pytest.approx(100 + 0.7 * 270 + 0.5 * (30 + 300))
    assert timing.fit_seconds(100_000) == pytest.approx(100 + 0.7 * 99_000 + 0.5 * (1000 + 512))
    assert timing.passes.gradients(4) == 1 + 4 * 2
    assert Passes(1, forward=2.0, backward=1.0).gradients(3) == 2  # noise does not make time negative


def test_slow_calls_are_not_repeated(monkeypatch):
    now, calls = [0.0], []

    def slow():
        calls.append(1)
        now[0] += 10.0

    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    assert module.typical_seconds(slow) == 10 and len(calls) == 2
    watched = module._Watched("batch")
    taken = []
    for batch in watched:
        taken.append(batch)
        now[0] += 10.0
    assert len(taken) == 2 and watched.seconds_per_batch == 10


def test_of_a_fit_the_first_batch_does_not_count(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    watched = module._Watched("batch")
    for place, _ in enumerate(watched):
        now[0] += 3.0 if place == 0 else 0.5
    assert watched.seconds_per_batch == 0.5


def test_a_fit_measures_few_of_many_positions():
    """The scale one gradient per input, calibration as many positions of each input as make a thousand points."""
    passes = Passes(points=10, forward=1.0, backward=3.0)
    timing = Timing(passes, query=64.0, fit=4.0, start=5.0, groups=64)
    assert timing.fit_seconds(10_000) == pytest.approx(5 + (4 * 9_000 + 4 * 512 + 4 * 1_000) / 10)
    assert timing.fit_seconds(500) == pytest.approx(5 + (4 * 450 + 4 * 500 + 20 * 50) / 10)
    assert timing.fit_seconds(100) == pytest.approx(5 + (4 * 90 + 4 * 100 + 64 * 10) / 10)
