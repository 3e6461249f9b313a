"""The digits data set: what is held out, how it is split, how it is turned."""

import pytest
import torch

from slu.cli.demo_steps import load_digits
from slu.errors import SettingError
from slu_experiments.data import digits


def test_every_image_is_in_exactly_one_set():
    data = digits.load((3, 5), seed=0)
    sets = [data.train_images, data.test_images, data.held_out_images]
    assert sum(map(len, sets)) == 1797
    assert data.classes == (0, 1, 2, 4, 6, 7, 8, 9)
    assert set(data.held_out_digits.tolist()) == {3, 5}
    assert set(data.train_labels.tolist()) == set(data.test_labels.tolist()) == set(range(8))
    assert set(data.test_digits.tolist()) == set(data.classes)
    assert data.test_digits[data.test_labels == 3].unique().tolist() == [4]


def test_pixels_and_shapes():
    data = digits.load()
    for images in (data.train_images, data.test_images, data.held_out_images):
        assert images.shape[1:] == (1, 8, 8)
        assert images.dtype == torch.float32
        assert (float(images.min()), float(images.max())) == (0.0, 1.0)
    assert len(data.test_images) == round(0.3 * (len(data.test_images) + len(data.train_images)))


def test_the_split_follows_the_seed_and_touches_no_global_state():
    state = torch.get_rng_state()
    one, two, other = digits.load(seed=1), digits.load(seed=1), digits.load(seed=2)
    assert torch.equal(one.train_images, two.train_images)
    assert not torch.equal(one.train_images, other.train_images)
    assert torch.equal(one.held_out_images, other.held_out_images)
    assert torch.equal(torch.get_rng_state(), state)


def test_turning_is_exact():
    image = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, None]
    assert digits.rotated(image)[0, 0].tolist() == [[2.0, 4.0], [1.0, 3.0]]
    assert digits.rotated(image, 2)[0, 0].tolist() == [[4.0, 3.0], [2.0, 1.0]]
    assert torch.equal(digits.rotated(image, 4), image)


@pytest.mark.parametrize("held_out", [(10,), (-1, 3), tuple(range(9))])
def test_impossible_classes_are_refused(held_out):
    with pytest.raises(SettingError, match="held_out must name digits"):
        digits.load(held_out)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_impossible_shares_are_refused(share):
    with pytest.raises(SettingError, match="test_share"):
        digits.load(test_share=share)


def test_the_demo_has_the_same_split():
    here, demo = digits.load(seed=3), load_digits(seed=3)
    assert torch.equal(here.train_images, demo.train.images) and torch.equal(here.test_images, demo.test.images)
    assert torch.equal(here.train_labels, demo.train.labels)
    assert torch.equal(here.test_digits, demo.test.digits)
    assert torch.equal(here.held_out_digits, demo.held_out.digits)
