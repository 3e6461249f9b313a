"""SLU with its defaults on networks of half precision, against float32 on the same, rounded weights and inputs.

The bound of a score's error, as a share of the largest score: every result of d operations in a row is rounded on the
way forward and back, and an energy is a square, 4 d roundings u. A convolutional network with smooth activations has
d = 6, a perceptron 5, an encoder of two layers about 24. Ranks must agree to 0.99.
"""

import copy
from contextlib import contextmanager, nullcontext

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn
from torch.utils.checkpoint import checkpoint

from slu import SLU
from slu.subspace import Nystrom

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
OPERATIONS = {"mlp": 5, "conv": 6, "encoder": 24}
RANKS = 0.99


class Encoder(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        layers = (nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2))
        self.into, self.layers, self.head = nn.Linear(6, 16), nn.ModuleList(layers), nn.Linear(16, 3)

    def forward(self, inputs):
        hidden = self.into(inputs)
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False) if self.checkpointed else layer(hidden)
        return self.head(hidden.mean(1))


def built(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name == "mlp":
            layers = nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3)
            return nn.Sequential(*layers).eval(), (6,)
        if name == "conv":
            layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.Tanh(), nn.Flatten()
            return nn.Sequential(*layers, nn.Linear(128, 3)).eval(), (1, 8, 8)
        return Encoder().eval(), (5, 6)


def widened(model, inputs):
    return model(inputs.float())


def errors(half, shape, dtype, context=nullcontext):
    """By reading the largest difference as a share of the largest score, and the correlation of ranks."""
    draw = torch.Generator().manual_seed(1)
    train = torch.randn(300, *shape, generator=draw).to(dtype)
    queries = 1.5 * torch.randn(60, *shape, generator=draw).to(dtype)
    single = copy.deepcopy(half).float()
    with context():
        ours = SLU(half, "classification").fit(list(train.split(50)))
    reference = SLU(single, "classification", forward=widened).fit(list(train.split(50)))
    result = {}
    for reading in ("combined", "fisher", "fisher-relative", "variance", "relative"):
        ours_of, other = ours(queries, reading=reading).double(), reference(queries, reading=reading).double()
        assert bool((ours_of != 0).all())
        difference = float((ours_of - other).abs().max() / other.abs().max())
        result[reading] = difference, float(spearmanr(ours_of, other)[0])
    return result


@DTYPES
@pytest.mark.parametrize("name", OPERATIONS)
def test_scores_are_those_of_float32_to_their_roundings(name, dtype):
    model, shape = built(name)
    bound = 4 * OPERATIONS[name] * torch.finfo(dtype).eps / 2
    for reading, (difference, ranks) in errors(model.to(dtype), shape, dtype).items():
        assert difference < bound and ranks > RANKS, (reading, difference, ranks)


@contextmanager
def sums_in_bfloat16():
    """What accumulating in the network's type would do."""
    add = Nystrom.add

    def rounded(self, rows):
        for row in rows:
            add(self, row[None])
            self.rows.copy_(self.rows.bfloat16())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Nystrom, "add", rounded)
        yield


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_control_sums_in_bfloat16_are_noticed(name):
    """By the bound of float16, in which the network itself computes here; of an encoder it is too wide."""
    model, shape = built(name)
    bound = 4 * OPERATIONS[name] * torch.finfo(torch.float16).eps / 2
    found = errors(model.half(), shape, torch.float16, sums_in_bfloat16)
    assert max(difference for difference, _ in found.values()) > bound


@pytest.mark.parametrize("gap", [20.0, 40.0, 80.0])
def test_a_confident_network_in_float16_does_not_underflow(gap):
    """Probabilities of e⁻⁸⁰, far below the smallest number of float16, at every point of the fit."""
    model, shape = built("mlp")
    with torch.no_grad():
        model[-1].bias += torch.tensor([gap, 0.0, -5.0])
    for reading, (difference, ranks) in errors(model.half(), shape, torch.float16).items():
        # Outputs of this size are rounded by gap · u, and the Fisher readings have their exponential.
        slack = gap if reading in ("fisher", "combined") else 20
        assert difference < 2 * slack * torch.finfo(torch.float16).eps and ranks > RANKS, (reading, difference, ranks)


def test_checkpointed_layers_without_reentry_have_the_same_scores():
    plain, shape = built("encoder")
    saved = Encoder(checkpointed=True).eval()
    saved.load_state_dict(plain.state_dict())
    draw = torch.Generator().manual_seed(1)
    inputs, queries = (torch.randn(count, *shape, generator=draw) for count in (120, 20))
    scores = [SLU(model, "classification").fit(list(inputs.split(30))) for model in (plain, saved)]
    for reading in scores[0].readings:
        ours, other = (score(queries, reading=reading) for score in scores)
        torch.testing.assert_close(ours, other, rtol=1e-3, atol=1e-4)
