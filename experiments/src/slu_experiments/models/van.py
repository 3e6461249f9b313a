"""A visual attention network: large-kernel convolutions that gate what they look at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_FIRST_SCALE = 1e-2  # of each branch, so that a new network is nearly the identity


class Gate(nn.Module):
    """u · conv(u) with a wide view of each channel: 5×5, then 7×7 at every third pixel, then over the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.view = nn.Sequential(
            nn.Conv2d(width, width, 5, padding=2, groups=width),
            nn.Conv2d(width, width, 7, padding=9, dilation=3, groups=width),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, u: Tensor) -> Tensor:
        return u * self.view(u)


class DropPath(nn.Module):
    """While training, leaves a branch out for some samples of a batch, and makes up for it in the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        kept = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device, dtype=x.dtype) >= self.rate
        return x * kept / (1 - self.rate)


class Block(nn.Module):
    """Attention and then an MLP with a 3×3 view, each normalized before, scaled after, beside a shortcut."""

    def __init__(self, width: int, ratio: int, drop: float) -> None:
        super().__init__()
        hidden = ratio * width
        self.norm_attention = nn.BatchNorm2d(width)
        self.attention = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), Gate(width), nn.Conv2d(width, width, 1))
        self.scale_attention = nn.Parameter(torch.full((width, 1, 1), _FIRST_SCALE))
        self.norm_mlp = nn.BatchNorm2d(width)
        self.mlp = nn.Sequential(
            nn.Conv2d(width, hidden, 1),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden),
            nn.GELU(),
            nn.Conv2d(hidden, width, 1),
        )
        self.scale_mlp = nn.Parameter(torch.full((width, 1, 1), _FIRST_SCALE))
        self.drop = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm_attention(x)
        y = x + self.drop(self.scale_attention * (self.attention(z) + z))
        return y + self.drop(self.scale_mlp * self.mlp(self.norm_mlp(y)))


class Stage(nn.Module):
    """A smaller, wider image by a strided convolution; blocks; LayerNorm over the channels of each pixel."""

    def __init__(self, channels: int, width: int, ratio: int, *, drops: Sequence[float], first: bool) -> None:
        super().__init__()
        size, stride = (7, 4) if first else (3, 2)
        self.embedding = nn.Sequential(
            nn.Conv2d(channels, width, size, stride, padding=size // 2), nn.BatchNorm2d(width)
        )
        self.blocks = nn.Sequential(*(Block(width, ratio, drop) for drop in drops))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(self.embedding(x))
        return self.norm(features.movedim(1, -1)).movedim(-1, 1)


class VisualAttentionNet(nn.Module):
    """Four stages, mean over positions, linear.

    The defaults are the paper's network for CelebA, with 3,858,309 parameters.

    Args:
        channels: Channels of the images.
        outputs: Attributes.
        widths, ratios, depths: Channels, widening inside the MLPs, and blocks of each stage.
        drop: The last block's drop path rate; it grows evenly from 0 at the first block.
    """

    def __init__(
        self,
        channels: int = 3,
        outputs: int = 37,
        widths: Sequence[int] = (32, 64, 160, 256),
        ratios: Sequence[int] = (8, 8, 4, 4),
        depths: Sequence[int] = (3, 3, 5, 2),
        drop: float = 0.3,
    ) -> None:
        super().__init__()
        drops = torch.linspace(0, drop, sum(depths), device="cpu").tolist()
        stages: list[nn.Module] = []
        for place, (width, ratio, depth) in enumerate(zip(widths, ratios, depths, strict=True)):
            own, drops = drops[:depth], drops[depth:]
            before = widths[place - 1] if place else channels
            stages.append(Stage(before, width, ratio, drops=own, first=not place))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(x).mean((2, 3)))
