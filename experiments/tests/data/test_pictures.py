"""Readers of picture files: CelebA, Food-101, ImageNet."""

import numpy as np
import pytest
import torch
from PIL import Image

from slu.errors import DataError, MissingDataError
from slu_experiments.data import open_set, stack
from slu_experiments.data.pictures import Pictures
from tiny_sets import ATTRIBUTES, write_celeba, write_food, write_picture

HELD_OUT = [ATTRIBUTES.index(name) for name in ("Bald", "Mustache", "Eyeglasses")]


def faces(n=12, seed=0):
    """Attributes (n, 40): faces 0, 5 and 7 have a held-out one, 7 has two."""
    values = np.random.default_rng(seed).integers(0, 2, (n, 40))
    values[:, HELD_OUT] = 0
    values[0, HELD_OUT[0]] = values[5, HELD_OUT[1]] = values[7, HELD_OUT[1]] = values[7, HELD_OUT[2]] = 1
    return values


def test_celeba_holds_faces_out_and_drops_their_columns(tmp_path):
    values = faces()
    pixels = write_celeba(tmp_path / "celeba", values)
    kept = [i for i in range(12) if i not in (0, 5, 7)]
    train, test = (open_set("celeba", part, tmp_path) for part in ("train", "test"))
    assert (len(train), len(test), train.shape) == (8, 1, (3, 12, 10))
    for source, chosen in ((train, kept[:8]), (test, kept[8:])):
        images, targets = stack(source)
        assert np.array_equal(images.numpy(), (pixels[chosen].transpose(0, 3, 1, 2) / 255).astype(np.float32))
        assert targets.dtype == torch.float32 and np.array_equal(targets.numpy(), values[chosen][:, :37])


@pytest.mark.parametrize(("name", "who"), [("bald", [0]), ("mustache", [5, 7]), ("eyeglasses", [7])])
def test_celebas_held_out_faces(tmp_path, name, who):
    pixels = write_celeba(tmp_path / "celeba", faces())
    images, targets = stack(open_set(f"celeba-{name}", "test", tmp_path))
    assert np.array_equal(images.numpy(), (pixels[who].transpose(0, 3, 1, 2) / 255).astype(np.float32))
    assert targets.shape == (len(who), 37)


def test_the_last_ten_thousand_faces_are_the_test_set_of_a_large_one(tmp_path, monkeypatch):
    """With 3 in place of 10,000."""
    monkeypatch.setattr("slu_experiments.data.celeba._TEST", 3)
    values = faces(40)
    write_celeba(tmp_path / "celeba", values)
    train, test = (open_set("celeba", part, tmp_path) for part in ("train", "test"))
    assert (len(train), len(test)) == (34, 3)
    assert np.array_equal(stack(test)[1].numpy(), values[-3:, :37])


def edit(folder, change):
    path = folder / "celeba" / "list_attr_celeba.txt"
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda lines: lines.pop(), "promises '12' faces and has 11"),
        (lambda lines: lines.__setitem__(0, "many"), "promises 'many'"),
        (lambda lines: lines.__setitem__(1, " ".join(ATTRIBUTES[1:])), "39 attributes"),
        (lambda lines: lines.__setitem__(1, " ".join(["Other", *ATTRIBUTES[:-1]])), "attributes"),
        (lambda lines: lines.__setitem__(3, lines[3][:-2]), "line 4"),
        (lambda lines: lines.__setitem__(3, lines[3][:-2] + " 2"), "line 4"),
        (lambda lines: lines.__setitem__(3, "../" + lines[3]), "outside of the folder"),
        (lambda lines: lines.clear(), "0 attributes"),
    ],
)
def test_damaged_attribute_files(tmp_path, change, what):
    write_celeba(tmp_path / "celeba", faces())
    edit(tmp_path, change)
    with pytest.raises(DataError, match=what):
        open_set("celeba", "train", tmp_path)


def test_a_cut_picture_and_one_that_is_not_there(tmp_path):
    write_celeba(tmp_path / "celeba", faces())
    source = open_set("celeba", "train", tmp_path)
    second, third = (tmp_path / "celeba" / "img_align_celeba" / f"{number:06}.jpg" for number in (3, 4))
    second.write_bytes(second.read_bytes()[:80])
    third.unlink()
    assert source.read(torch.tensor([0]))[0].shape == (1, 3, 12, 10)
    with pytest.raises(DataError, match="no whole picture"):
        source.read(torch.tensor([0, 1]))
    with pytest.raises(MissingDataError, match=r"000004\.jpg.*slu-paper data fetch celeba"):
        source.read(torch.tensor([2]))
    assert source.absent() == [third]


def test_no_face_has_the_attribute(tmp_path):
    values = faces()
    values[:, HELD_OUT] = 0
    write_celeba(tmp_path / "celeba", values)
    with pytest.raises(DataError, match="has no face"):
        open_set("celeba-bald", "test", tmp_path)


def test_food_is_read_at_the_size_of_the_faces_beside_it(tmp_path):
    write_food(tmp_path / "food-101")
    source = open_set("food101", "test", tmp_path)
    assert (len(source), source.shape) == (4, (3, 218, 178))
    write_celeba(tmp_path / "celeba", faces())
    source = open_set("food101", "test", tmp_path)
    images, labels = stack(source)
    assert labels.tolist() == [0, 0, 1, 1]
    with Image.open(tmp_path / "food-101" / "images" / "pie" / "1.jpg") as picture:
        resized = np.asarray(picture.resize((10, 12), Image.Resampling.BILINEAR))
    assert np.array_equal(images[1].numpy(), (resized.transpose(2, 0, 1) / 255).astype(np.float32))


@pytest.mark.parametrize("line", ["cake/1", "pie", "pie/../salad/0", "pie/"])
def test_a_list_of_food_that_names_something_else(tmp_path, line):
    write_food(tmp_path / "food-101")
    with (tmp_path / "food-101" / "meta" / "test.txt").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match="expected CLASS/NUMBER"):
        open_set("food101", "test", tmp_path)


def test_imagenet_without_the_classes_held_out(tmp_path):
    val = tmp_path / "imagenet" / "val"
    for seed, kind in enumerate(["n01440764", "n02980441", "n15075141"]):
        for number in range(2):
            write_picture(val / kind / f"{number}.JPEG", (300, 280), 10 * seed + number)
        (val / kind / "notes.txt").write_text("no picture")
    source = open_set("imagenet", "test", tmp_path)
    assert (len(source), source.shape) == (4, (3, 224, 224))
    assert stack(source)[1].tolist() == [0, 0, 1, 1]
    castles = open_set("imagenet-castle", "test", tmp_path)
    assert len(castles) == 2
    # The middle 224 of a side of 256: one pixel's way from the whole picture's centre is the same.
    with Image.open(val / "n02980441" / "0.JPEG") as picture:
        small = picture.resize((256, round(300 * 256 / 280)), Image.Resampling.BILINEAR)
        middle = np.asarray(small)[25 : 25 + 224, 16 : 16 + 224]
    assert np.array_equal(
        castles.read(torch.tensor([0]))[0][0].numpy(), (middle.transpose(2, 0, 1) / 255).astype(np.float32)
    )
    with pytest.raises(MissingDataError):
        open_set("imagenet-volcano", "test", tmp_path)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_pictures_of_every_kind_become_colour(tmp_path, mode):
    path = tmp_path / "x.tif"
    Image.fromarray(np.full((6, 5, 3), 100, np.uint8)).convert(mode).save(path)
    images, _ = Pictures([path], torch.zeros(1), size=(6, 5), name="x").read(torch.tensor([0]))
    assert images.shape == (1, 3, 6, 5)
    assert torch.allclose(images, torch.full_like(images, 100 / 255), atol=2 / 255)
