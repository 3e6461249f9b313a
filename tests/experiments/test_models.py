"""The paper's networks: exact numbers of parameters, shapes, refusals."""

import pytest
import torch
from torch import nn

from slu.errors import SettingError
from slu.experiments.models import MLP, LeNet, ResNet
from slu.experiments.randomness import seeded


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("build", "parameters", "shape"),
    [(MLP, 15_910, (1, 28, 28)), (LeNet, 44_426, (1, 28, 28)), (ResNet, 272_378, (3, 32, 32))],
)
def test_the_papers_counts(build, parameters, shape):
    model = seeded(build, seed=0).eval()
    assert count(model) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_the_mlp_takes_any_sizes_and_activation():
    model = seeded(lambda: MLP((6, 5, 4, 3), activation=nn.ReLU), seed=0)
    assert count(model) == 6 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3
    assert [type(layer).__name__ for layer in model.layers] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert model(torch.zeros(7, 2, 3)).shape == (7, 3)


@pytest.mark.parametrize("side", [16, 17, 28, 32])
def test_lenet_takes_other_images(side):
    model = seeded(lambda: LeNet(channels=3, outputs=4, side=side), seed=0)
    assert model(torch.zeros(2, 3, side, side)).shape == (2, 4)


def test_resnet_halves_the_image_in_the_later_stages():
    model = seeded(lambda: ResNet(channels=1, outputs=4, widths=(4, 8), blocks=2), seed=0).eval()
    images = torch.zeros(2, 1, 8, 8)
    assert model.stages(model.stem(images)).shape == (2, 8, 4, 4)
    assert model(images).shape == (2, 4)
    shortcuts = [type(block.shortcut).__name__ for block in model.stages]
    assert shortcuts == ["Identity", "Identity", "Conv2d", "Identity"]
    assert {m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {0.01}


@pytest.mark.parametrize(
    ("build", "message"),
    [(lambda: MLP((3,)), r"sizes.*got \(3,\)"), (lambda: MLP((3, 0, 2)), "sizes"), (lambda: LeNet(side=15), "16.*15")],
)
def test_what_cannot_be_built_is_refused(build, message):
    with pytest.raises(SettingError, match=message):
        build()


def test_initial_weights_depend_on_the_seed_alone():
    state = torch.get_rng_state()
    one, two, other = (seeded(MLP, seed).layers[0].weight for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
