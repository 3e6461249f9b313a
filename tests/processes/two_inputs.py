"""Run by several processes: a model of two inputs, given as a tuple, of which the first process has no points."""

import torch
from torch import nn

from running import group, tell
from slu import SLU
from together import differences, points


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()

    def forward(self, left, right):
        return self.layers(torch.cat([left, right], 1))


def divided(x):
    return x[:, :2], x[:, 2:]


if __name__ == "__main__":
    x, y = points(200, "classification").tensors
    batches = [(divided(inputs), targets) for inputs, targets in zip(x.split(20), y.split(20), strict=True)]
    queries = divided(points(30, "classification", seed=7).tensors[0])
    with group() as rank:
        scores = [
            SLU(TwoInputs(), "classification", rank=8).fit(data, group=who)
            for data, who in ((batches if rank else [], None), (batches, False))
        ]
        of_all, of_one = (each.settings.network.reader.format.to_plain() for each in scores)
        tell({"differences": differences(*scores, queries), "format": of_all, "format of one": of_one})
