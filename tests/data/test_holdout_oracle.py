"""Which points are held out, predicted on Python's integers from the rule alone (`oracles.held_out`).

The held-out points are taken to be those that the batches leave out, and in the last test those that a fit by the
public class leaves out and calibrates on.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from oracles import content_number, content_numbers, held_out, splitmix
from slu import SLU
from slu.data import HoldOut, Reservoir, batches

CPU = torch.device("cpu")
POINTS = 120


def distinct(count=POINTS, dtype=torch.float32, seed=0):
    return torch.randn(count, 2, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)


def repeated():
    """40 points, the i-th of them 1 + i % 5 times."""
    inputs = distinct(40)
    return inputs.repeat_interleave(torch.arange(40) % 5 + 1, 0)


def bag(rows):
    """Points as a multiset of their bytes."""
    return Counter(row.numpy().tobytes() for row in rows)


def left_out(inputs, loader, share, most, least, seed, left=0):
    """What the batches lack of the inputs."""
    data = HoldOut(loader, Reservoir(1.0, most, share, least), seed, len, (lambda _: left) if left else None)
    given = bag(row for batch in batches(data, CPU) for row in batch.inputs)
    everything = bag(inputs)
    assert not given - everything, "a point that was not in the data, or too often"
    return everything - given


def predicted(inputs, share, most, least, seed, left=0):
    came, numbers = Counter(), []
    for row in inputs.numpy():  # of a point that comes for the j-th time the j-th number
        came[row.tobytes()] += 1
        numbers.append(content_numbers([row], seed, "calibration", came[row.tobytes()])[-1])
    return bag(row for row, out in zip(inputs, held_out(numbers, share, most, least, left), strict=True) if out)


def splits(inputs):
    """The same points as one batch, in batches of 7, one by one, and shuffled in batches of 16 with a short last."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(3))
    return [inputs, list(inputs.split(7)), list(inputs.split(1)), list(inputs[order].split(16))]


@pytest.mark.parametrize("data", [distinct, repeated])
@pytest.mark.parametrize("seed", [0, 1, 17, 2**40])
@pytest.mark.parametrize(
    ("share", "most", "least"),
    [(0.1, 1000, 0), (0.1, 1000, 30), (0.3, 9, 0), (0.5, 1, 0), (0.1, 40, 39), (0.1, 1000, 500)],
)
def test_exactly_the_predicted_points_are_held_out(data, seed, share, most, least):
    inputs = data()
    expected = predicted(inputs, share, most, least, seed)
    assert expected.total() <= most
    for loader in splits(inputs):
        assert left_out(inputs, loader, share, most, least, seed) == expected


def test_the_cases_above_are_not_empty():
    """Control: shares and maxima decide, and copies of a point are on both sides."""
    sizes = {most: [predicted(distinct(), 0.3, most, 0, seed).total() for seed in (0, 1, 17)] for most in (1000, 9)}
    assert sizes[9] == [9, 9, 9] and min(sizes[1000]) > 20
    assert [predicted(distinct(), 0.1, 1000, 30, seed).total() for seed in (0, 1, 17)] == [30, 30, 30]
    groups = [predicted(repeated(), 0.3, 1000, 0, seed) for seed in (0, 1, 17, 2**40)]
    assert all(0 < (bag(repeated()) - group).total() < 120 for group in groups)
    assert all(set(group) & set(bag(repeated()) - group) for group in groups)


@pytest.mark.parametrize("data", [distinct, repeated])
@pytest.mark.parametrize("left", [POINTS, 110, 100, 80])
def test_so_many_points_are_left_in_the_data(data, left):
    """Those with the largest numbers go back; of 120 points left of 120, all."""
    inputs = data()
    expected = predicted(inputs, 0.3, 1000, 50, 0, left)
    assert expected.total() <= len(inputs) - left < predicted(inputs, 0.3, 1000, 50, 0).total()
    assert bool(expected) == (left < POINTS)
    for loader in splits(inputs):
        assert left_out(inputs, loader, 0.3, 1000, 50, 0, left) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64, torch.int16], ids=str)
def test_every_type_of_number(dtype):
    inputs = (100 * distinct()).to(dtype)
    assert left_out(inputs, inputs, 0.3, 1000, 0, 0) == predicted(inputs, 0.3, 1000, 0, 0) != Counter()


def test_several_tensors_in_a_point():
    """Their order counts; targets do not: they may not be there when the score is asked."""
    one, two = distinct(), distinct(seed=1).flatten(1)[:, :4].clone()
    targets = torch.arange(POINTS)
    numbers = [content_number(point, 5) for point in zip(one.numpy(), two.numpy(), strict=True)]
    expected = [place for place, out in enumerate(held_out(numbers, 0.2, 1000, 0)) if out]
    loader = [
        ({"one": part, "two": other}, target)
        for part, other, target in zip(one.split(7), two.split(7), targets.split(7), strict=True)
    ]
    data = HoldOut(loader, Reservoir(1.0, 1000, 0.2), 5, lambda inputs: len(inputs["one"]))
    given = torch.cat([batch.targets for batch in batches(data, CPU)])
    assert sorted(set(range(POINTS)) - set(given.tolist())) == expected


def test_one_changed_bit_changes_the_choice():
    """Control: the last bit of one number of every point, for which both sides choose anew, alike."""
    inputs = distinct()
    changed = inputs.clone()
    changed.view(torch.int32)[:, 1, 2] ^= 1
    places = [held_out([content_number([row], 0) for row in rows.numpy()], 0.3, 1000, 0) for rows in (inputs, changed)]
    assert places[0] != places[1]
    assert left_out(changed, changed, 0.3, 1000, 0, 0) == predicted(changed, 0.3, 1000, 0, 0)
    single = inputs.clone()
    single[0, 0, 0] += 1
    numbers = [[content_number([row], 0) for row in rows.numpy()] for rows in (inputs, single)]
    assert [one != two for one, two in zip(*numbers, strict=True)] == [True] + [False] * (POINTS - 1)
    assert content_number([inputs[0].numpy()], 0) != content_number([inputs[0].numpy()], 1)


def test_control_the_oracle_is_splitmix():
    """The generator's published first outputs from the state 1234567."""
    state, outputs = 1234567, []
    for _ in range(3):
        state += 0x9E3779B97F4A7C15
        outputs.append(splitmix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 3])
def test_a_default_fit_leaves_out_and_calibrates_on_them(seed):
    """A tenth of 300 points; the calibration's scores are those of the predicted points."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    inputs = distinct(300)
    loader = DataLoader(TensorDataset(inputs, torch.arange(300) % 3), 32)
    score = SLU(model, "classification", rank=4, sketch_size=40, seed=seed).fit(loader)
    chosen = np.array(held_out([content_number([row], seed) for row in inputs.numpy()], 0.1, 1000, 19))
    assert 15 < chosen.sum() < 45
    assert score.diagnostics.points == 300 - chosen.sum()
    assert score.calibration.points == chosen.sum()
    expected = score(inputs[chosen], reading="variance", outputs=1).sort().values.double()
    torch.testing.assert_close(score.calibration.scores["variance"], expected, rtol=1e-5, atol=0)
    others = score(inputs[np.roll(chosen, 1)], reading="variance").sort().values.double()
    assert not torch.allclose(score.calibration.scores["variance"], others, rtol=0.01), "control: as many others"
