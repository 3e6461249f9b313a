"""Before anything is fitted: points that the network cannot take are refused, and torch is warm."""

import pytest
import torch
from torch import nn

from fakes import Formula
from slu import SLU
from slu.baselines.outputs import MaxLogit
from slu.comparing import compare
from slu.comparing import preflight as module
from slu.errors import DataError

POINTS = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
WIDE = torch.cat([POINTS, POINTS], 1)


def first(inputs):
    return inputs[:, 0]


def board(methods, **changed):
    return compare(
        methods, **{"train": POINTS, "inside": POINTS, "outside": {"far": 3 * POINTS}} | changed, resamples=40
    )


def slu(model=None):
    return SLU(model or nn.Linear(4, 3), "classification", rank=2)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"outside": {"far": 3 * POINTS, "wide": [WIDE]}}, r"outside\['wide'\]"),
        ({"inside": [(WIDE, torch.zeros(12))]}, "inside"),
    ],
    ids=["outside", "inside"],
)
@pytest.mark.parametrize("made", [slu, lambda: MaxLogit(nn.Linear(4, 3))], ids=["SLU", "MaxLogit"])
@pytest.mark.parametrize("lazy", [True, False], ids=["function", "method"])
def test_points_of_another_width_are_refused_before_anything_is_fitted(changed, name, made, lazy):
    own = Formula(first)
    with pytest.raises(DataError, match=f"^{name}: the network cannot be called on the first point.*RuntimeError"):
        board({"own": own, "with a network": made if lazy else made()}, **changed)
    assert own.fits == 0


def test_a_network_that_takes_not_even_the_train_set_fails_in_its_row():
    results = board({"odd": slu(nn.Linear(9, 3)), "own": Formula(first)})
    assert results["odd"].failure.stage == "fitting" and results["own"].failure is None


def test_a_lack_of_memory_is_not_the_fault_of_a_set():
    class Full(nn.Linear):
        def forward(self, input):
            if float(input.sum()) > 1e6:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(input)

    results = board([slu(Full(4, 3))], outside={"far": POINTS + 1e7, "near": POINTS})["SLU"]
    assert results.failures["far"].kind == "OutOfMemoryError" and "near" in results.judgements


def test_without_a_network_nothing_is_known():
    results = board([Formula(first)], outside={"wide": WIDE})
    assert "wide" in results["Formula"].judgements


def test_functions_are_made_no_more_often_than_they_must():
    calls = []

    def maker(name, method):
        def make():
            calls.append(name)
            if method is None:
                raise RuntimeError("not this one")
            return method

        return make

    results = board({"bad": maker("bad", None), "one": maker("one", slu()), "two": maker("two", slu())})
    # The one that refuses is asked again in its turn; what was made for the preflight is used.
    assert calls == ["bad", "one", "bad", "two"]
    assert [row.failure is None for row in results] == [False, True, True]
    calls.clear()
    board({"one": maker("one", slu()), "there": slu()})
    assert calls == ["one"]


class Recorder:
    """Stands in for the tiny method of the warm-up."""

    def __init__(self, log, error=None):
        self.log, self.error = log, error

    def __call__(self, model, likelihood, **settings):
        self.log.append(sum(parameter.numel() for parameter in model.parameters()))
        if self.error:
            raise self.error
        return self

    def fit(self, loader, *, progress=None):
        return lambda data, progress: None


@pytest.mark.parametrize("error", [None, RuntimeError("no such device")])
def test_torch_is_warm_before_the_first_fit_and_only_for_networks(error, monkeypatch):
    log = []
    monkeypatch.setattr(module, "SLU", Recorder(log, error))

    class Timed(Formula):
        def fit(self, loader, *, progress=None):
            log.append("fit")
            return super().fit(loader, progress=progress)

    results = board({"own": Timed(first), "max": MaxLogit(nn.Linear(4, 3))})
    # Once for each solver, or until the first that fails.
    assert log == [*[6] * (1 if error else 2), "fit"] and all(row.failure is None for row in results)
    log.clear()
    board([Timed(first)])
    assert log == ["fit"]


def test_the_warm_up_itself_works(monkeypatch):
    """What goes wrong in it is silent, so it is asked here whether it came to its end."""
    ends = []

    class Watched:
        def __init__(self, *args, **settings):
            self.method = SLU(*args, **settings)

        def fit(self, *args, **settings):
            score = self.method.fit(*args, **settings)
            return lambda *args, **settings: ends.append(score(*args, **settings))

    monkeypatch.setattr(module, "SLU", Watched)
    before = torch.get_rng_state()
    module._warm_up(torch.device("cpu"))
    assert len(ends) == 2 and all(result.shape == (2,) for result in ends)  # one for each solver
    assert torch.equal(before, torch.get_rng_state())


class Two(nn.Module):
    """Takes two inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, a, b):
        return self.layer(a + b)


def first_of(inputs):
    """A detector, of one input or of several."""
    return first(inputs[0] if isinstance(inputs, tuple) else inputs)


def test_sets_are_read_by_the_signature_of_the_network():
    """As a fit reads them: two inputs and targets; an input, targets of another width and what nothing needs."""
    classes, ids = torch.arange(12) % 3, torch.arange(12)
    one_hot = nn.functional.one_hot(classes).float()
    for model, batch, inputs in (
        (Two(), (POINTS, POINTS, classes), ((POINTS, POINTS), None)),
        (nn.Linear(4, 3), (POINTS, one_hot, ids), POINTS),
    ):
        far = tuple(3 * part if part is POINTS else part for part in batch)
        methods = {"SLU": slu(model), "made": lambda model=model: MaxLogit(model), "own": first_of}
        results = compare(methods, train=[batch], inside=[batch], outside={"far": [far]}, resamples=40)
        assert all(row.failure is None and not row.failures for row in results)
        expected = slu(model).fit([batch])(inputs)
        assert torch.allclose(torch.from_numpy(results.scores["SLU"].inside), expected.double(), rtol=1e-4)
        assert torch.equal(torch.from_numpy(results.scores["own"].inside), POINTS[:, 0].double())


@pytest.mark.parametrize("made", [slu, MaxLogit], ids=["SLU", "MaxLogit"])
def test_outputs_at_positions_are_refused_before_the_fit_and_the_remedy_works(made, monkeypatch):
    words = torch.randint(40, (40, 6), generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Embedding(40, 4), nn.Tanh(), nn.Linear(4, 3))
    score = slu(model).fit(words)
    monkeypatch.setattr(SLU, "fit", lambda *args, **settings: pytest.fail("it was fitted"))
    monkeypatch.setattr(module, "_warm_up", lambda device: None)
    results = compare(
        {"positions": made(model), "remedy": lambda inputs: score(inputs, reduce="mean")},
        train=words, inside=words, outside={"other": words.flip(0)}, resamples=40,
    )  # fmt: skip
    failure = results["positions"].failure
    assert failure is not None and failure.kind == "DataError" and "forward=" in failure.message
    if made is slu:
        assert failure.stage == "looking at its outputs" and "at 6 positions" in failure.message
        assert "reduce='mean'" in failure.message
    assert results["remedy"].failure is None and "other" in results["remedy"].judgements
