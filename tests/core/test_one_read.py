"""The default fit reads its data once: generators, streams, and what needs more than one pass."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from calibrated import held, problem, slu
from oracles import network
from slu import SLU, Checkpoint, DiagonalScale, FactoredScale, Lanczos
from slu.data import ReadAhead
from slu.errors import DataError, MismatchError

FEW = FactoredScale(points=50)


class Counted:
    """A loader that counts how often it is begun, and which batches are taken."""

    def __init__(self, batches, stop=None):
        self.batches, self.stop, self.begun, self.taken = list(batches), stop, 0, []

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.begun += 1
        for place, batch in enumerate(self.batches):
            if place == self.stop:
                raise KeyboardInterrupt
            self.taken.append(place)
            yield batch


class Stream(IterableDataset):
    def __init__(self, points):
        self.points = points

    def __iter__(self):
        return iter(self.points)


def same(one, other, inputs):
    assert one.scale == other.scale
    assert torch.equal(one.state.subspace.basis, other.state.subspace.basis)
    for reading in one.readings:
        assert torch.equal(one(inputs, reading=reading), other(inputs, reading=reading))


@pytest.mark.parametrize("calibration", [None, False])
@pytest.mark.parametrize("scale", ["auto", FEW, FactoredScale(points=60), None, DiagonalScale(points=50)])
def test_every_batch_is_taken_once(scale, calibration):
    model, inputs = problem()
    data = Counted(inputs.split(30))
    score = SLU(model, "classification", rank=5, scale=scale).fit(data, calibration=calibration)
    assert (data.begun, data.taken) == (1, list(range(len(data))))
    assert score.diagnostics.passes == 1 == SLU(model, "classification", rank=5, scale=scale).cost().passes
    apart = 0 if calibration is False else int(held(inputs).sum())
    assert score.diagnostics.points == len(inputs) - apart and (score.calibration is None) == (not apart)


@pytest.mark.parametrize("points", [37, 150, 400])
def test_a_generator_or_a_stream_is_fitted_as_a_list_is(points):
    """With hold-out: of 37 points none are held out, which is known at the end only."""
    model, inputs = problem(points)
    batches = list(inputs.split(30))
    method = SLU(model, "classification", rank=5, scale=FEW)
    expected = method.fit(DataLoader(Stream(inputs), batch_size=30))
    assert (expected.calibration is None) == (points < 38)
    for data in (
        iter(batches),
        Counted(batches),
        ((batch, None) for batch in batches),
    ):
        same(method.fit(data), expected, inputs[:7])
    if points >= 38:  # of fewer in a list, the fit knows from the first point on that none is held out
        same(method.fit(batches), expected, inputs[:7])


def test_other_calibration_points_and_more_data_may_be_generators():
    model, inputs = problem(300)
    own = 0.7 * inputs.flip(0)
    method = SLU(model, "classification", rank=5, scale=FEW)
    expected = method.fit(list(inputs[:200].split(40)), calibration=list(own.split(40)))
    score = method.fit(iter(inputs[:200].split(40)), calibration=iter(own.split(40)))
    same(score, expected, inputs[:7])
    before = score.scale
    same(
        score.partial_fit(iter(inputs[200:].split(40))), expected.partial_fit(list(inputs[200:].split(40))), inputs[:7]
    )
    assert score.scale is before and score.diagnostics.passes == 1


@pytest.mark.parametrize(
    "settings",
    [{"solver": "lanczos"}, {"solver": Lanczos(), "scale": None}, {"scale": "diagonal"}, {"scale": DiagonalScale()}],
)
def test_an_iterator_is_refused_before_a_second_pass_is_missed(settings):
    model, inputs = problem()
    taken = []

    def batches():
        for batch in inputs.split(30):
            taken.append(batch)
            yield batch

    message = (
        r"a generator, which can be read only once; .* need several passes, the default settings one.*a DataLoader"
    )
    with pytest.raises(DataError, match=message):
        SLU(model, "classification", rank=5, **settings).fit(batches())
    assert not taken


@pytest.mark.parametrize("scale", ["auto", FEW])
@pytest.mark.parametrize("stop", [1, 3, 6])
@pytest.mark.parametrize("calibration", [None, False])
def test_killed_and_resumed_it_is_the_same_bit_for_bit(stop, scale, calibration, tmp_path):
    """Also where the process ends while the first points are read; a generator that begins anew will do."""
    model, inputs = problem(240)
    method = slu(model, scale=scale)
    expected = method.fit(list(inputs.split(30)), calibration=calibration)
    run = Checkpoint(tmp_path / "run", every=0)
    with pytest.raises(KeyboardInterrupt):
        method.fit(Counted(inputs.split(30), stop), calibration=calibration, checkpoint=run)
    rest = Counted(inputs.split(30))
    same(method.fit(iter(rest), calibration=calibration, checkpoint=run), expected, inputs[:7])
    assert rest.begun == 1
    # It is finished now, and read once more to be compared, in any order.
    again = method.fit(iter(inputs.flip(0).split(50)), calibration=calibration, checkpoint=run)
    same(again, expected, inputs[:7])


class Noisy(Counted):
    """An augmentation by torch's own random numbers."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch + 0.1 * torch.randn(batch.shape, dtype=batch.dtype)


def test_an_augmentation_goes_on_where_the_first_points_ended(tmp_path):
    """Its points are those of a pass without a scale: every pass of Lanczos sees them, and a resumed fit does."""
    model, inputs = problem(240)
    batches = inputs.split(30)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert slu(model, scale=FEW, solver=Lanczos()).fit(Noisy(batches)).diagnostics.passes == 5
        method, run = slu(model, scale=FEW), Checkpoint(tmp_path / "run", every=0)
        expected = method.fit(Noisy(batches))
        before = torch.get_rng_state()
        with pytest.raises(KeyboardInterrupt):
            method.fit(Noisy(batches, 6), checkpoint=run)
        same(method.fit(Noisy(batches), checkpoint=run), expected, inputs[:7])
        assert torch.equal(torch.get_rng_state(), before)


def test_a_resumed_fit_computes_no_scale_anew(tmp_path, monkeypatch):
    model, inputs = problem(240)
    method = slu(model, scale=FEW)
    run = Checkpoint(tmp_path / "run", every=0)
    with pytest.raises(KeyboardInterrupt):
        method.fit(Counted(inputs.split(30), 6), checkpoint=run)
    monkeypatch.delattr(FactoredScale, "compute")
    assert method.fit(list(inputs.split(30)), checkpoint=run).diagnostics.points == 240 - int(held(inputs).sum())


@pytest.mark.parametrize("left", [0, 3, 5])
def test_a_generator_that_goes_on_where_it_was_stopped_is_refused(left, tmp_path):
    """The checkpoint has seen other batches; where fewer are left than it saw, there is nothing to compare."""
    model, inputs = problem(240)
    method = slu(model, scale=FEW)
    run = Checkpoint(tmp_path / "run", every=0)
    with pytest.raises(KeyboardInterrupt):
        method.fit(Counted(inputs.split(30), 6), calibration=False, checkpoint=run)
    with pytest.raises((MismatchError, DataError), match=r"begun on other data|gave no batch"):
        method.fit(iter(inputs.split(30)[8 - left :] if left else []), calibration=False, checkpoint=run)


def test_shards_share_one_scale_and_others_do_not_merge(tmp_path):
    model, inputs = problem(300)
    first = slu(model).fit(iter(inputs[:150].split(30)), calibration=False)
    second = slu(model, scale=first.scale).fit(iter(inputs[150:].split(30)), calibration=False)
    merged = SLU.merge([first, second])
    assert merged.scale == first.scale and merged.diagnostics.points == 300
    for name, score in (("own", second), ("merged", merged)):
        score.save(tmp_path / name)
        again = SLU.load(tmp_path / name, model)
        same(again, score, inputs[:7])
        assert again.settings.header() == score.settings.header()
    with pytest.raises(MismatchError, match=r"another scale than the first.*scale=first\.scale"):
        SLU.merge([first, slu(model).fit(inputs[150:], calibration=False)])
    dense = first.scale.scaled(0, torch.ones(51, dtype=torch.float64))
    with pytest.raises(MismatchError, match="another scale"):
        SLU.merge([first, slu(model, scale=dense).fit(inputs[150:], calibration=False)])


def test_the_file_has_the_numbers_of_rows_and_columns(monkeypatch):
    for module in ("core.scaling", "budgets.size"):
        monkeypatch.setattr(f"slu.{module}.SMALL_TENSOR", 18)
    model, inputs = network("mlp")
    score = SLU(model, "classification", rank=4).fit(inputs)
    tensors, plain = score.state.to_file()
    assert tensors["scale"].shape == (4 + 6 + 6 + 6 + 3 + 3,) and plain["scale"] == "factored"
    layers = sum(values.numel() for name, values in tensors.items() if name.startswith("layers."))
    assert layers == 4 * 7 + 6 * 9
    assert SLU(model, "classification", rank=4).cost().artefact == 8 * (4 * 51 + 28 + layers)


def test_points_read_ahead_come_first_and_once():
    points = torch.arange(10.0)[:, None]
    data = ReadAhead(iter(points.split(3)))
    first = data.first(5, points.device, len)
    assert [batch.inputs.flatten().tolist() for batch in first.checked] == [[0, 1, 2], [3, 4]]
    whole = [batch.inputs.flatten().tolist() for batch in data.checked_batches(points.device)]
    assert whole == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    with pytest.raises(DataError, match="no batch"):
        list(data.checked_batches(points.device))
