"""Threads that score with one network, and with several: the scores of one thread, and a process left as it was."""

import sys
import threading

import pytest
import torch
from torch import nn

from oracles import network
from slu import SLU


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
