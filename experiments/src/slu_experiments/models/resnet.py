"""A small residual network with post-activation blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# The paper's code keeps 0.99 of the running statistics; torch names the other share.
_NORM_MOMENTUM = 0.01


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut; ReLU after the sum."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width, momentum=_NORM_MOMENTUM),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width, momentum=_NORM_MOMENTUM),
        )
        same = stride == 1 and channels == width
        # With a bias and without a norm: unusual, but the paper's count of parameters says so.
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of blocks that halve the image from the second on, mean pooling, linear.

    The defaults are the paper's network for CIFAR-10, with 272,378 parameters.

    Args:
        channels: Channels of the images.
        outputs: Classes.
        widths: Channels of each stage.
        blocks: Blocks in each stage.
    """

    def __init__(
        self, channels: int = 3, outputs: int = 10, widths: Sequence[int] = (16, 32, 64), blocks: int = 3
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(widths[0], momentum=_NORM_MOMENTUM),
            nn.ReLU(),
        )
        stages: list[nn.Module] = []
        before = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stages.append(Block(before, width, stride=2 if stage and not block else 1))
                before = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))
