"""Data of a comparison: refused before anything is fitted, or read in one order by every method."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fakes import COST, Formula, FormulaScore
from slu import SLU
from slu.comparing import compare
from slu.comparing.evaluation_data import evaluation_data, outside_sets
from slu.errors import DataError, SettingError

POINTS = torch.arange(24.0).reshape(12, 2)


def loader(points=POINTS, **settings):
    return DataLoader(TensorDataset(points), **{"batch_size": 5, **settings})


def generator():
    yield from POINTS.split(5)


class Broken:
    """Fails at a batch."""

    def __init__(self, at):
        self.at = at

    def __iter__(self):
        yield from POINTS.split(5)[: self.at]
        raise OSError("the disk is gone")


class Restless:
    """Another order every time, by a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self):
        yield from POINTS[torch.randperm(12, generator=self.generator)].split(5)


REFUSED = [
    (generator(), "generator, which can be read only once"),
    ([], "gave no batch"),
    (Broken(at=0), "failed at batch 0: OSError: the disk is gone"),
    ([torch.full((3, 2), torch.nan)], "NaN or infinity"),
    (None, "got NoneType"),
]


@pytest.mark.parametrize("place", ["train", "inside", "outside"])
@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_read_is_refused_before_anything_is_fitted(place, data, message):
    method = Formula(lambda inputs: inputs[:, 0])
    asked = {"train": loader(), "inside": loader(), "outside": {"far": loader()}}
    asked[place] = {"far": data} if place == "outside" else data
    name = {"outside": r"outside\['far'\]"}.get(place, place)
    with pytest.raises(DataError, match=f"^{name}: .*{message}"):
        compare([method], **asked)
    assert method.fits == 0


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_another_order_every_time_is_refused(place):
    asked = {"inside": loader(), "outside": loader(), place: Restless()}
    with pytest.raises(DataError, match=r"the first batch was another one.*shuffle=False"):
        evaluation_data(loader(), **asked)
    evaluation_data(Restless(), loader(), loader())  # fits may shuffle as they like


@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("batch_size", [5, 12])
def test_a_loader_that_shuffles_by_torchs_state_is_refused(place, batch_size):
    """It would give the points in another order to a score that draws numbers before it reads them."""
    method = Formula(lambda x: x[:, 0])
    shuffled = loader(shuffle=True, batch_size=batch_size)
    asked = {"train": shuffled, "inside": loader(), "outside": loader(), place: shuffled}
    before = torch.get_rng_state()
    with pytest.raises(DataError, match=rf"^{place}.*torch's random state.*\(shuffle=False\); only train may"):
        compare([method], **asked)
    assert method.fits == 0 and torch.equal(before, torch.get_rng_state())


class Drawing:
    """Draws numbers before it reads the data, and keeps what it was fitted on."""

    def fit(self, data, *, progress=None):
        self.seen = torch.cat([inputs for (inputs,) in data])
        return FormulaScore({"first": lambda x: x[:, 0] + 0 * torch.rand(len(x))})

    def cost(self, outputs=None, batch=1):
        torch.rand(3)
        return COST


def test_every_method_is_fitted_on_the_same_points_in_the_same_order():
    one, two = Drawing(), Drawing()
    board = compare([one, two], train=loader(shuffle=True), inside=loader(), outside=loader(POINTS + 5), resamples=40)
    assert torch.equal(one.seen, two.seen)
    assert not torch.equal(one.seen, POINTS)  # it did shuffle
    assert (board.scores["Drawing"].inside == board.scores["Drawing 2"].inside).all()


def test_the_random_state_is_left_alone():
    before = torch.get_rng_state()
    noisy = Formula(lambda x: x[:, 0] + torch.rand(len(x)))
    compare([noisy], train=loader(shuffle=True), inside=loader(), outside=loader(), resamples=40)
    assert torch.equal(before, torch.get_rng_state())
    model = torch.nn.Linear(2, 3)
    before = torch.get_rng_state()
    compare([SLU(model, "classification", rank=1)], train=POINTS, inside=loader(), outside=loader(), resamples=40)
    assert torch.equal(before, torch.get_rng_state())


def test_an_example_and_the_batch_size():
    data = evaluation_data(loader(), loader(batch_size=4), POINTS + 1)
    assert (data.train_batch, data.batch) == (5, 4) and torch.equal(data.examples["inside"], POINTS[:1])
    assert list(data.outside) == ["outside"] and list(data.examples) == ["train", "inside", "outside['outside']"]
    assert torch.equal(data.examples["outside['outside']"], POINTS[:1] + 1)
    pairs = evaluation_data(POINTS, {"a": POINTS, "b": POINTS}, {"x": [({"a": POINTS, "b": POINTS}, None)]})
    assert pairs.batch == 12 and [len(part) for part in pairs.examples["inside"].values()] == [1, 1]


def test_names_of_outside_sets():
    assert outside_sets(POINTS) == {"outside": POINTS}
    assert list(outside_sets({"b": POINTS, "a": POINTS})) == ["b", "a"]
    with pytest.raises(SettingError, match="no outside set"):
        outside_sets({})
    with pytest.raises(SettingError, match="the name 3 came"):
        outside_sets({3: POINTS})
