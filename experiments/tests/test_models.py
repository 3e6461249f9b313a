"""The paper's networks: exact numbers of parameters, shapes, refusals."""

import sys

import pytest
import torch
from torch import nn

from slu import SLU
from slu.errors import SettingError, SluError
from slu.seeds import fenced, stream
from slu_experiments.models import MLP, MODELS, LeNet, ResNet, Swin, VisualAttentionNet, build, seeded


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


# The paper's counts, and ours of the digits' network; the shape of an image and the outputs.
KNOWN = {
    "mlp": (15_910, (1, 28, 28), 10),
    "lenet": (44_426, (1, 28, 28), 10),
    "resnet": (272_378, (3, 32, 32), 10),
    "van": (3_858_309, (3, 218, 178), 37),
    "swin": (196_517_106, (3, 224, 224), 990),
    "digits-mlp": (17_096, (1, 8, 8), 8),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_papers_counts(name):
    parameters, shape, outputs = KNOWN[name]
    # On the meta device nothing is allocated nor computed: shapes alone.
    with torch.device("meta"):
        model = build(name).eval()
    assert count(model) == parameters
    assert model(torch.zeros(2, *shape, device="meta")).shape == (2, outputs)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "swin"])
def test_every_model_takes_a_number_of_outputs(name):
    _, shape, _ = KNOWN[name]
    model = seeded(lambda: build(name, outputs=3), seed=0).eval()
    outputs = model(torch.rand(1, *shape, generator=stream(0, "image")))
    assert outputs.shape == (1, 3) and bool(outputs.isfinite().all())


def test_an_unknown_model_is_refused():
    with pytest.raises(SettingError, match="unknown model 'vit'; valid are 'mlp', 'lenet'"):
        build("vit")


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


def test_the_attention_network_stage_by_stage():
    with torch.device("meta"):
        model = VisualAttentionNet()
    counts = [(count(stage.embedding), count(stage.blocks[0]), count(stage.norm)) for stage in model.stages]
    assert counts == [(4_800, 25_024, 64), (18_624, 88_960, 128), (92_640, 302_400, 320), (369_408, 754_176, 512)]
    assert [len(stage.blocks) for stage in model.stages] == [3, 3, 5, 2]
    assert count(model.head) == 9_509


def small_van(drop=0.5):
    return VisualAttentionNet(outputs=2, widths=(4, 6), ratios=(2, 2), depths=(2, 1), drop=drop)


def test_the_attention_network_halves_the_image_and_norms_its_channels():
    model = seeded(small_van, seed=0).eval()
    images = torch.rand(3, 3, 21, 17, generator=stream(0, "images"))
    features = model.stages(images)
    assert features.shape == (3, 6, 3, 3)  # 21 × 17 by four, then by two, rounded up
    torch.testing.assert_close(features.mean(1), torch.zeros(3, 3, 3), atol=1e-5, rtol=0)


def test_an_attention_block_is_what_it_should_be():
    """y = x + s₁ (A(BN x) + BN x) and z = y + s₂ M(BN y), with s of 0.01 at the start."""
    block = seeded(small_van, seed=0).eval().stages[0].blocks[0]
    assert block.scale_attention.flatten().tolist() == pytest.approx([0.01] * 4)
    x = torch.rand(2, 4, 9, 9, generator=stream(0, "x"))
    z = block.norm_attention(x)
    into, gelu, gate, out = block.attention
    u = gelu(into(z))
    local, wide, mixed = gate.view
    assert (wide.dilation, wide.groups, local.groups, mixed.kernel_size) == ((3, 3), 4, 4, (1, 1))
    y = x + 0.01 * (out(u * mixed(wide(local(u)))) + z)
    torch.testing.assert_close(block(x), y + 0.01 * block.mlp(block.norm_mlp(y)))


def test_drop_path_grows_along_the_network_and_keeps_the_mean():
    model = VisualAttentionNet()
    rates = [block.drop.rate for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0.3 * place / 12 for place in range(13)])
    drop = model.stages[3].blocks[1].drop
    ones = torch.ones(20_000, 1, 1, 1)
    with fenced(0, "drop path"):
        dropped = drop.train()(ones).flatten()
    kept = 1 / (1 - 0.3)
    assert dropped.unique().tolist() == pytest.approx([0.0, kept])
    # Four standard deviations of the mean of a scaled Bernoulli variable.
    assert abs(float(dropped.mean()) - 1) < 4 * kept * (0.3 * 0.7 / 20_000) ** 0.5
    assert torch.equal(drop.eval()(ones), ones)


@pytest.mark.parametrize(
    "network",
    [
        lambda: Swin(outputs=5, side=32, window=2, width=8, depths=(1, 1), heads=(1, 2)),
        lambda: VisualAttentionNet(outputs=5, widths=(4, 6), ratios=(2, 2), depths=(2, 1)),
    ],
)
def test_small_ones_of_the_large_networks_can_be_scored(network):
    """Forwards, backwards and sample by sample: whatever a score needs, transformers' network does too."""
    model = seeded(network, seed=0).eval()
    images = torch.rand(6, 3, 32, 32, generator=stream(0, "images"))
    assert isinstance(model(images), torch.Tensor) and model(images).shape == (6, 5)
    score = SLU(model, "classification", rank=2, sketch_size=40).fit(images)
    scores = score(images)
    assert score.diagnostics.effective_rank == 2
    assert bool(scores.isfinite().all()) and bool((scores > 0).all())


def test_swin_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SluError, match=r"Swin.*'transformers'.*experiments\[transformers\]"):
        Swin()


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
