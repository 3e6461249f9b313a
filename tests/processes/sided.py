"""Run by several processes: a fit of texts that one process pads on a side, and the same texts padded otherwise."""

import sys

import torch
from torch import nn

from running import group, tell
from slu import SLU, Checkpoint
from slu.errors import SluError


class Positioned(nn.Module):
    """Positions are numbered from the first column."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(30, 6), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask):
        places = torch.arange(input_ids.shape[1])[:, None] / 5
        mask = attention_mask[..., None].double()
        return self.head((torch.tanh(self.words(input_ids) + places) * mask).sum(1) / mask.sum(1))


def texts(*, left: bool, padding: int) -> list[dict[str, torch.Tensor]]:
    words = torch.randint(1, 30, (40, 4), generator=torch.Generator().manual_seed(padding))
    tokens = nn.functional.pad(words, (padding, 0) if left else (0, padding))
    return [{"input_ids": each, "attention_mask": each.clamp(max=1)} for each in tokens.split(10)]


def ended(parts: list) -> str:
    try:
        fit = SLU(Positioned().double(), "classification", rank=4, scale=None).fit
        fit(parts[rank], calibration=False, checkpoint=Checkpoint(f"{sys.argv[1]}/run"))
    except SluError as reason:
        return f"{type(reason).__name__}: {reason}"
    return "done"


if __name__ == "__main__":
    with group() as rank:
        plain, left, right = (texts(left=side, padding=size) for side, size in ((False, 0), (True, 3), (False, 3)))
        pairs = {"begun": [plain, left], "exchanged": [left, plain], "other side": [plain, right]}
        tell({name: ended(parts) for name, parts in pairs.items()})
