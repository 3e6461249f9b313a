"""Small networks with outputs at several positions, in float64, and their dense curvature."""

import torch
from torch import nn

from slu.likelihoods import resolve

LIKELIHOODS = ("classification", "regression", "multilabel")
IGNORED = -100


class Tagger(nn.Module):
    """Words to outputs for every word; with a mixing layer the words of a text see each other."""

    def __init__(self, words=11, width=6, outputs=3, mixing=True):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layer = nn.Linear(width, width)
        self.head = nn.Linear(width, outputs)
        self.mixing = mixing

    def forward(self, input_ids, attention_mask=None):
        hidden = self.table(input_ids)
        if self.mixing:
            weights = torch.ones_like(hidden[..., :1])
            if attention_mask is not None:
                weights = attention_mask[..., None].to(hidden)
            hidden = hidden + (weights * hidden).sum(1, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1)
        return self.head(torch.tanh(self.layer(hidden)))


class Segmenter(nn.Module):
    """Pictures to outputs for every pixel."""

    def __init__(self, outputs=3):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, padding=1)
        self.up = nn.Conv2d(4, outputs, 3, padding=1)

    def forward(self, x):
        return self.up(torch.tanh(self.down(x)))


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval()


def texts(points=48, length=7, seed=1, words=11):
    """Words and masks of unequal lengths, and labels with -100 at the padding."""
    drawn = torch.Generator().manual_seed(seed)
    ids = torch.randint(words, (points, length), generator=drawn)
    lengths = torch.randint(2, length + 1, (points,), generator=drawn)
    mask = (torch.arange(length) < lengths[:, None]).long()
    labels = torch.randint(3, (points, length), generator=drawn).masked_fill(mask == 0, IGNORED)
    return {"input_ids": ids, "attention_mask": mask}, labels


def pictures(points=40, side=5, seed=1):
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (points, side, side), generator=drawn)
    return torch.randn(points, 2, side, side, generator=drawn, dtype=torch.float64), labels


def padded(batch, more, word=3):
    """The same texts with more padding, at which some word stands."""
    inputs, labels = batch
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    blank = ids.new_full((len(ids), more), word)
    longer = {"input_ids": torch.cat([ids, blank], 1), "attention_mask": torch.cat([mask, 0 * blank], 1)}
    return longer, torch.cat([labels, torch.full_like(blank, IGNORED)], 1)


def dense_curvature(model, call, likelihood, counted):
    """Σ over inputs and the positions that count of J_τᵀ H_τ J_τ, by plain autograd.

    Args:
        model: The network.
        call: Gives its outputs (b, P, C).
        likelihood: Of the C outputs.
        counted: (b, P).
    """
    likelihood = resolve(likelihood)
    parameters = list(model.parameters())
    outputs = call()
    total = 0.0
    for point, position in counted.nonzero().tolist():
        here = outputs[point, position]
        rows = [torch.autograd.grad(each, parameters, retain_graph=True) for each in here]
        jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
        hessian = likelihood.hessian_product(here.detach()[None], torch.eye(len(here)).double()[:, None])[:, 0]
        total = total + jacobian.T @ hessian @ jacobian
    return total
