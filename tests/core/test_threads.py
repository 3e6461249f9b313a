"""Threads that score with one network, and with several: the scores of one thread, and a process left as it was."""

import sys
import threading

import pytest
import torch
from torch import nn

from oracles import network
from slu import SLU, Mahalanobis
from slu.errors import SelectionError
from slu.parameters import fingerprint, select
from untouched import assert_same, snapshot


class Noisy(nn.Module):
    """Dropout and running statistics, which would change outputs in training mode."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, inputs):
        return self.layers(inputs)


@pytest.fixture(autouse=True)
def often_switched():
    """Python changes threads every few microseconds, so that what can go wrong does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def asked_at_once(questions):
    answers, barrier = [None] * len(questions), threading.Barrier(len(questions))

    def ask(place):
        barrier.wait()
        answers[place] = questions[place]()

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_scores_are_those_of_one_thread():
    """Batches of several sizes and readings of several costs, two networks, one of them in training mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noisy = Noisy().double().train()
    other, inputs = network("encoder")[0], torch.randn(24, 4, dtype=torch.float64)
    tokens = network("encoder")[1]
    scores = [SLU(noisy, "classification", rank=4).fit(inputs), SLU(other, "classification", rank=4).fit(tokens)]
    state, fast_path = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    before = {name: value.clone() for name, value in noisy.state_dict().items()}
    questions = [
        lambda count=count, outputs=outputs, score=score, data=data: score(
            data[:count], reading="fisher", outputs=outputs
        )
        for count in (1, 5, 12)
        for outputs in (1, "all")
        for score, data in zip(scores, (inputs, tokens), strict=True)
    ]
    alone = [question() for question in questions]
    for _ in range(5):
        for answer, expected in zip(asked_at_once(questions), alone, strict=True):
            torch.testing.assert_close(answer, expected, rtol=1e-12, atol=0)
    assert all(module.training for module in noisy.modules())
    assert all(torch.equal(value, before[name]) for name, value in noisy.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and torch.backends.mha.get_fastpath_enabled() == fast_path


def test_one_threads_error_does_not_stop_the_others():
    model, inputs = network("mlp")
    score = SLU(model, "classification", rank=4).fit(inputs)

    def wrong():
        with pytest.raises(Exception, match="shape"):
            score(torch.randn(3, 5, dtype=torch.float64))

    answers = asked_at_once([wrong, lambda: score(inputs), wrong, lambda: score(inputs)])
    assert torch.equal(answers[1], answers[3]) and torch.equal(answers[1], score(inputs))


class Recurrent(nn.Module):
    """A recurrent layer, for which cuDNN is switched off, beside dropout."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(8, 6, batch_first=True), nn.Sequential(nn.Dropout(), nn.Linear(6, 3))

    def forward(self, inputs):
        return self.head(self.layer(inputs)[0].mean(1))


def several():
    """Networks in training mode that need every switch, and inputs for all of them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = [network("encoder")[0].train(), Recurrent().double().train()]
    return models, torch.randn(48, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def outcome(work):
    """What a piece of work gives, or the kind of error that it ends in, an interruption as well."""
    try:
        return work()
    except BaseException as error:
        return type(error)


class Stopped:
    """Calls the model, and stops with an error at a later call."""

    def __init__(self, error, at):
        self.error, self.left = error, at

    def __call__(self, model, inputs):
        self.left -= 1
        if not self.left:
            raise self.error
        return model(inputs)


def fitted_and_scored(model, inputs):
    return SLU(model, "classification", rank=4).fit(inputs)(inputs[:7])


def test_fits_and_scores_at_once_are_those_of_one_thread_and_leave_no_trace():
    """Four fits of one network, two of another, and a method that hooks a layer; all start while others call it."""
    models, inputs = several()
    before = [snapshot(model) for model in models]
    targets = torch.arange(len(inputs)) % 3
    works = [lambda model=model: fitted_and_scored(model, inputs) for model in (*models, models[0], models[0], *models)]
    works += [lambda: Mahalanobis(models[0], "classification").fit([(inputs, targets)])(inputs[:7])] * 2
    alone = [work() for work in works]
    for answer, expected in zip(asked_at_once(works), alone, strict=True):
        torch.testing.assert_close(answer, expected, rtol=1e-12, atol=0)
    for model, was in zip(models, before, strict=True):
        assert_same(was, snapshot(model))


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_a_thread_that_fails_or_is_interrupted_leaves_no_trace(error):
    models, inputs = several()
    before = [snapshot(model) for model in models]
    expected = [fitted_and_scored(model, inputs) for model in models]

    def stopped(model, at):
        return SLU(model, "classification", rank=4, forward=Stopped(error, at)).fit(inputs)

    works = [lambda model=model: fitted_and_scored(model, inputs) for model in models]
    works += [lambda model=model, at=at: outcome(lambda: stopped(model, at)) for model in models for at in (1, 3)]
    answers = asked_at_once(works)
    for answer, wanted in zip(answers, expected, strict=False):
        torch.testing.assert_close(answer, wanted, rtol=1e-12, atol=0)
    assert all(isinstance(answer, type) and issubclass(answer, BaseException) for answer in answers[2:])
    for model, was in zip(models, before, strict=True):
        assert_same(was, snapshot(model))


def test_a_model_is_not_read_while_another_thread_calls_it():
    """Else its parameters would be those that stand in for them: detached, and no parameters to train."""
    model, inputs = network("mlp")
    known, score = fingerprint(model), SLU(model, "classification", rank=4).fit(inputs)

    def read():
        for _ in range(50):
            assert select(model).names == ("0.weight", "0.bias", "2.weight", "2.bias")
            assert fingerprint(model) == known
            score(inputs[:2])
        return True

    assert asked_at_once([read] * 4) == [True] * 4


def test_control_without_the_lock_replacements_are_seen(monkeypatch):
    """The test above can fail: in a call the parameters are others, and none of them is trainable."""
    model, inputs = network("mlp")
    seen = []

    def looks(called, x):
        seen.append(outcome(lambda: select(called)))
        return called(x)

    SLU(model, "classification", rank=4, forward=looks).fit(inputs)
    assert SelectionError in seen
