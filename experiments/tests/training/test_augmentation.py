"""Crops and mirror images: right pixels, right frequencies, and one fate a sample and epoch."""

import math

import pytest
import torch

from slu.errors import SettingError
from slu_experiments.training.augmentation import Augmentation, apply

MANY = 20_000
CROP = Augmentation(scale=(0.8, 1.0), ratio=(0.9, 1.1))


def drawn(x=0.5, y=0.5, wide=1.0, high=1.0, sign=1.0):
    return torch.tensor([[x, y, wide, high, sign]])


def ramp(height=6, width=8):
    """An image whose pixels are a linear function of where they are: bilinear interpolation is exact on it."""
    rows = (torch.arange(height) + 0.5) / height
    columns = (torch.arange(width) + 0.5) / width
    return (3 * rows[:, None] + columns[None, :])[None, None]


def test_the_whole_image_stays_as_it_is():
    images = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(apply(images, drawn().expand(2, -1)), images, atol=1e-6, rtol=0)


def test_a_mirrored_image_has_its_columns_reversed():
    images = torch.rand(1, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(apply(images, drawn(sign=-1.0)), images.flip(3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_crop_shows_the_part_it_names(sign):
    x, y, wide, high = 0.55, 0.4, 0.6, 0.5
    cropped = apply(ramp(), drawn(x, y, wide, high, sign))
    rows = y + high * ((torch.arange(6) + 0.5) / 6 - 0.5)
    columns = x + sign * wide * ((torch.arange(8) + 0.5) / 8 - 0.5)
    torch.testing.assert_close(cropped[0, 0], 3 * rows[:, None] + columns[None, :], atol=1e-5, rtol=0)


def test_normalizing_before_is_normalizing_after():
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    how = CROP.draw(4, seed=0, epoch=0)
    torch.testing.assert_close(apply((images - 0.4) / 0.2, how), (apply(images, how) - 0.4) / 0.2, atol=1e-5, rtol=1e-5)


def test_crops_lie_inside_and_have_the_sizes_that_were_asked_for():
    x, y, wide, high, sign = CROP.draw(MANY, seed=0, epoch=3).unbind(1)
    assert bool((x - wide / 2 >= -1e-6).all()) and bool((x + wide / 2 <= 1 + 1e-6).all())
    assert bool((y - high / 2 >= -1e-6).all()) and bool((y + high / 2 <= 1 + 1e-6).all())
    area, ratio = wide * high, wide / high
    assert 0.8 - 1e-5 <= float(area.min()) < 0.801 and 0.999 < float(area.max()) <= 1 + 1e-5
    assert 0.9 - 1e-5 <= float(ratio.min()) < 0.901 and 1.099 < float(ratio.max()) <= 1.1 + 1e-5
    assert set(sign.tolist()) == {1.0, -1.0}


def test_frequencies():
    """Half are mirrored; the freed room is used evenly on both sides: four standard deviations of a mean of MANY."""
    x, y, wide, high, sign = CROP.draw(MANY, seed=1, epoch=0).unbind(1)
    bound = 4 / math.sqrt(MANY)
    assert abs(float(sign.mean())) < bound
    for centre, size in ((x, wide), (y, high)):
        room = (1 - size) > 1e-3
        place = ((centre - size / 2) / (1 - size))[room]
        assert abs(float(place.mean()) - 0.5) < bound * math.sqrt(1 / 12) * 1.1
        assert abs(float(place.var()) - 1 / 12) < bound * 0.1
    # Control: another rate of mirroring is told apart by the same bound.
    tilted = Augmentation(flip=0.55).draw(MANY, seed=1, epoch=0)[:, 4]
    assert abs(float(tilted.mean())) > bound


def test_an_area_alone_is_uniform():
    """With square crops nothing is rejected, so the area is uniform in its range."""
    area = Augmentation(scale=(0.25, 1.0)).draw(MANY, seed=0, epoch=0)[:, 2].square()
    assert abs(float(area.mean()) - 0.625) < 4 * math.sqrt(0.75**2 / 12 / MANY)


def test_a_fate_depends_on_seed_and_epoch_alone():
    one = CROP.draw(100, seed=0, epoch=1)
    assert torch.equal(one, CROP.draw(100, seed=0, epoch=1))
    for other in (CROP.draw(100, seed=1, epoch=1), CROP.draw(100, seed=0, epoch=2)):
        assert not torch.equal(one, other)


def test_a_ratio_that_never_fits_gives_the_whole_image():
    wide = Augmentation(scale=(1.0, 1.0), ratio=(2.0, 2.0), flip=0.0).draw(5, seed=0, epoch=0)
    assert wide.tolist() == [[0.5, 0.5, 1.0, 1.0, 1.0]] * 5


@pytest.mark.parametrize("settings", [{"scale": (0.0, 1.0)}, {"scale": (0.5, 1.5)}, {"ratio": (1.1, 0.9)}, {"flip": 2}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        Augmentation(**settings)


def test_only_images_can_be_cropped():
    with pytest.raises(SettingError, match="only images"):
        apply(torch.zeros(1, 5), drawn())
