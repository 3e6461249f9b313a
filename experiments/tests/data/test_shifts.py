"""Turned and corrupted images."""

import itertools

import numpy as np
import pytest
import torch
from scipy.ndimage import rotate

from slu.errors import DataError, MissingDataError, SettingError
from slu.seeds import stream
from slu_experiments.data import Memory, open_set, stack
from slu_experiments.data.cifar import CIFAR10
from slu_experiments.data.corruptions import KINDS, REPORTED, STRENGTHS, Corrupted, StoredCorruption
from slu_experiments.data.corruptions.weather import cloud
from slu_experiments.data.rotations import ANGLES, Rotated
from tiny_sets import write_cifar, write_idx


def pictures(n=4, c=1, side=28, seed=0):
    pixels = torch.randint(0, 256, (n, c, side, side), generator=stream(seed, "pixels"), dtype=torch.uint8)
    return Memory(pixels, torch.arange(n))


def scenes(n=12, side=32):
    """Smooth colour images, as photographs are: noise of low frequencies."""
    from scipy.ndimage import gaussian_filter

    noise = np.random.default_rng(0).normal(size=(n, 3, side, side))
    smooth = gaussian_filter(noise, (0, 0, 2, 2), mode="wrap")
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return Memory(torch.from_numpy((255 * smooth).astype(np.uint8)), torch.arange(n))


@pytest.mark.parametrize("side", [8, 28, 9])
@pytest.mark.parametrize(("degrees", "quarters"), [(90, 1), (180, 2), (270, 3), (360, 0), (-90, 3)])
def test_right_angles_are_exact(side, degrees, quarters):
    source = pictures(side=side)
    assert torch.equal(stack(Rotated(source, degrees))[0], torch.rot90(stack(source)[0], quarters, (2, 3)))


@pytest.mark.parametrize("degrees", [angle for angle in ANGLES if angle % 90])
def test_other_angles_are_scipys(degrees):
    """Where a pixel falls between two, either may be taken: at 45 degrees those on the diagonals."""
    upright = stack(pictures())[0].double().numpy()
    expected = rotate(upright, degrees, axes=(2, 3), reshape=False, order=0, mode="grid-constant", cval=0)
    turned = stack(Rotated(pictures(), degrees))[0].numpy()
    assert np.mean(np.abs(turned - expected) > 1e-6) < 0.03
    wrong_way = rotate(upright, -degrees, axes=(2, 3), reshape=False, order=0, mode="grid-constant", cval=0)
    assert np.mean(np.abs(turned - wrong_way) > 1e-6) > 0.5


def test_turning_makes_no_new_values_and_fills_with_black():
    white = Memory(torch.full((1, 1, 28, 28), 200, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    turned = stack(Rotated(white, 45))[0]
    assert set(turned.unique().tolist()) == {0.0, float(np.float32(200) / np.float32(255))}
    assert turned[0, 0, 0, 0] == 0 and turned[0, 0, 14, 14] > 0


def test_rotated_sets_by_name(tmp_path):
    write_idx(tmp_path / "fmnist")
    upright, turned = (open_set(name, "test", tmp_path) for name in ("fmnist", "fmnist-rotated-180"))
    assert torch.equal(stack(turned)[0], stack(upright)[0].flip(2, 3))
    assert torch.equal(stack(turned)[1], stack(upright)[1])
    for wrong in ("fmnist-rotated-10", "fmnist-rotated-195", "fmnist-rotated-015", "cifar10-rotated-30"):
        with pytest.raises(SettingError, match="unknown data set"):
            open_set(wrong, "test", tmp_path)


def test_what_cannot_be_turned():
    with pytest.raises(DataError, match="square"):
        Rotated(Memory(torch.zeros(1, 1, 3, 4), torch.zeros(1)), 30)
    with pytest.raises(SettingError, match="finite"):
        Rotated(pictures(), float("nan"))


@pytest.mark.parametrize("kind", list(STRENGTHS))
@pytest.mark.parametrize("severity", [1, 3, 4, 5])
def test_corrupted_images_are_images_and_follow_seed_and_number_alone(kind, severity):
    source = scenes(6)
    worn = Corrupted(source, kind, severity)
    images, targets = stack(worn)
    assert (images.shape, images.dtype, len(worn)) == ((6, *source.shape), torch.float32, 6)
    assert targets.tolist() == list(range(6))
    assert float(images.min()) >= 0 and float(images.max()) <= 1
    # Values that a file of bytes can hold.
    assert torch.equal((images * 255).round() / 255, images)
    # In other batches and another order: the same images.
    pieces = [worn.read(torch.tensor(places))[0] for places in ([5, 0], [3], [2, 1, 4])]
    assert torch.equal(torch.cat(pieces), images[[5, 0, 3, 2, 1, 4]])
    assert not torch.equal(images, stack(source)[0])


DRAWN = [
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "glass_blur", "motion_blur", "fog", "snow",
    "spatter", "elastic_transform",
]  # fmt: skip


@pytest.mark.parametrize("kind", list(STRENGTHS))
def test_draws_differ_between_images_and_seeds(kind):
    """The same picture four times gets other draws; what draws nothing does the same to all."""
    copies = Memory(stack(scenes(1))[0].expand(4, -1, -1, -1), torch.zeros(4))
    corrupted = stack(Corrupted(copies, kind, 5))[0]
    assert bool((corrupted == corrupted[:1]).all()) == (kind not in DRAWN)
    assert torch.equal(corrupted, stack(Corrupted(copies, kind, 5, seed=1))[0]) == (kind not in DRAWN)


# Their strengths do not grow with the number: glass blur and elastic transform trade one thing for another,
# saturate goes grey before it goes bright, spatter turns from water to mud.
UNEVEN = ("glass_blur", "elastic_transform", "saturate", "spatter")


@pytest.mark.parametrize("kind", [kind for kind in STRENGTHS if kind not in UNEVEN])
def test_a_higher_severity_is_further_from_the_clean_image(kind):
    clean = stack(scenes())[0]
    far = [float((stack(Corrupted(scenes(), kind, s))[0] - clean).square().mean().sqrt()) for s in range(1, 6)]
    assert far[0] > 0
    assert all(near < 1.02 * further for near, further in itertools.pairwise(far)), far
    assert far[-1] > 1.15 * far[0], far


def corrupted(kind, severity, values):
    """One image of the given channel values, corrupted."""
    image = torch.tensor(values).view(1, 3, 1, 1).expand(1, 3, 32, 32)
    return Corrupted(Memory(image, torch.zeros(1)), kind, severity).read(torch.tensor([0]))[0][0]


def test_strengths_are_the_benchmarks():
    """What can be said without a copy of the benchmark: moments, and colours by the definition of HSV."""
    grey = (0.5, 0.5, 0.5)
    noise = corrupted("gaussian_noise", 5, grey) - 0.5
    assert float(noise.std()) == pytest.approx(0.10, rel=0.05)
    shot = corrupted("shot_noise", 5, grey)
    assert (float(shot.mean()), float(shot.var())) == pytest.approx((0.5, 0.5 / 50), rel=0.1)
    assert float((corrupted("impulse_noise", 5, grey) - 0.5).abs().gt(0.4).float().mean()) == pytest.approx(
        0.07, rel=0.2
    )
    assert float(corrupted("speckle_noise", 5, (0.25,) * 3).std()) == pytest.approx(0.2 * 0.25, rel=0.07)
    assert corrupted("brightness", 5, (0.4, 0.2, 0.1))[:, 0, 0].tolist() == pytest.approx([0.7, 0.35, 0.175], abs=3e-3)
    assert corrupted("brightness", 5, (0.0, 0.0, 0.0))[:, 0, 0].tolist() == pytest.approx([0.3] * 3, abs=3e-3)
    assert corrupted("saturate", 1, (0.8, 0.4, 0.6))[:, 0, 0].tolist() == pytest.approx([0.8, 0.68, 0.74], abs=3e-3)
    assert corrupted("saturate", 5, grey)[:, 0, 0].tolist() == pytest.approx([0.5, 0.4, 0.4], abs=3e-3)
    assert torch.allclose(corrupted("contrast", 5, grey), torch.tensor(0.5), atol=3e-3)


@pytest.mark.parametrize(
    "kind", ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "glass_blur", "pixelate"]
)
def test_blur_leaves_a_plain_image_as_it_is(kind):
    plain = corrupted(kind, 5, (0.2, 0.6, 0.8))
    assert torch.allclose(plain, torch.tensor([0.2, 0.6, 0.8]).view(3, 1, 1).expand_as(plain), atol=3e-3)


def test_a_box_of_a_pixelated_image_is_its_mean():
    """Half the side would be boxes of two by two; the benchmark's shares are not so plain, its method is."""
    from slu_experiments.data.corruptions.digital import pixelate

    images = np.random.default_rng(0).random((2, 4, 4, 3))
    boxes = images.reshape(2, 2, 2, 2, 2, 3).mean((2, 4))
    assert np.allclose(pixelate(images, 0.5, []), boxes.repeat(2, 1).repeat(2, 2))


def test_clouds_are_smoother_the_faster_their_draws_shrink():
    maps = {decay: [cloud(32, decay, np.random.default_rng(seed)) for seed in range(8)] for decay in (1.75, 3)}
    roughness = {
        decay: np.mean([np.abs(np.diff(each, axis=0)).mean() for each in clouds]) for decay, clouds in maps.items()
    }
    assert all(each.shape == (32, 32) and each.min() == 0 and each.max() == 1 for each in maps[3])
    assert roughness[3] < 0.8 * roughness[1.75]


def test_frost_says_that_it_needs_the_benchmarks_files():
    with pytest.raises(MissingDataError, match=r"frost cannot be generated.*cifar10-c"):
        Corrupted(scenes(), "frost", 5)


def test_what_cannot_be_corrupted():
    with pytest.raises(SettingError, match="unknown corruption 'rain'"):
        Corrupted(scenes(), "rain", 5)
    with pytest.raises(SettingError, match="1 to 5, got 6"):
        Corrupted(scenes(), "fog", 6)
    with pytest.raises(DataError, match="power of two"):
        Corrupted(pictures(), "fog", 5)


def write_stored(folder, kinds, n=3):
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (5 * n, 32, 32, 3)).astype(np.uint8)
    for kind in kinds:
        np.save(folder / f"{kind}.npy", pixels)
    np.save(folder / "labels.npy", np.tile(np.arange(n), 5))
    return pixels


def test_the_benchmarks_own_files_come_first(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-bin", CIFAR10["test"])
    generated = open_set("cifar10-fog-2", "test", tmp_path)
    assert isinstance(generated, Corrupted)
    pixels = write_stored(tmp_path / "CIFAR-10-C", ["fog", "frost"])
    for kind in ("fog", "frost"):
        images, labels = stack(open_set(f"cifar10-{kind}-2", "test", tmp_path))
        assert np.array_equal(images.numpy(), (pixels[3:6].transpose(0, 3, 1, 2) / 255).astype(np.float32))
        assert labels.tolist() == [0, 1, 2]
    assert isinstance(open_set("cifar10-snow-2", "test", tmp_path), Corrupted)


@pytest.mark.parametrize(
    ("file", "values", "what"),
    [
        ("fog", np.zeros((15, 32, 32, 3)), "whole numbers"),
        ("fog", np.zeros((15, 32, 32, 3), np.int64), "bytes"),
        ("fog", np.zeros((14, 32, 32, 3), np.uint8), "5 n"),
        ("fog", np.zeros((15, 3, 32, 32), np.uint8), "5 n"),
        ("labels", np.zeros(14, np.uint8), "14,"),
        ("fog", np.array([{}]), "no whole .npy"),
    ],
)
def test_damaged_files_of_the_benchmark(tmp_path, file, values, what):
    write_stored(tmp_path / "C", ["fog"])
    np.save(tmp_path / "C" / f"{file}.npy", values)
    with pytest.raises(DataError, match=what):
        StoredCorruption(tmp_path / "C", "fog", 5)


def test_a_cut_file_of_the_benchmark(tmp_path):
    write_stored(tmp_path / "C", ["fog"])
    path = tmp_path / "C" / "fog.npy"
    for size in (0, 20, 1000):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(DataError, match=r"no whole .npy"):
            StoredCorruption(tmp_path / "C", "fog", 5)


def test_the_papers_fourteen():
    assert len(KINDS) == 19 and len(REPORTED) == 14 and "frost" in REPORTED
