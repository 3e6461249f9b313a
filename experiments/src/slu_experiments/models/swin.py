"""Swin, as the package transformers has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from slu.errors import SluError


class Swin(nn.Module):
    """Attention in shifted windows; images to logits.

    The defaults are the paper's network for ImageNet, with 196,517,106 parameters. Attention is
    written out rather than fused: the fused kernels have no forward-mode derivative.

    Args:
        outputs: Classes.
        side: Height and width of the images.
        window: Patches along a window's side.
        width: Channels of the first stage; each further one has twice as many.
        depths, heads: Blocks and attention heads of each stage.
    """

    def __init__(
        self,
        outputs: int = 990,
        side: int = 224,
        window: int = 7,
        width: int = 192,
        depths: Sequence[int] = (2, 2, 18, 2),
        heads: Sequence[int] = (6, 12, 24, 48),
    ) -> None:
        super().__init__()
        try:
            from transformers import SwinConfig, SwinForImageClassification
        except ModuleNotFoundError as reason:
            raise SluError(
                "the Swin network needs the package 'transformers', which is not installed; install it with: "
                "pip install './experiments[transformers]'"
            ) from reason

        settings: dict[str, Any] = {
            "image_size": side,
            "patch_size": 4,
            "window_size": window,
            "embed_dim": width,
            "depths": list(depths),
            "num_heads": list(heads),
            "num_labels": outputs,
            "attn_implementation": "eager",
        }
        self.network = SwinForImageClassification(SwinConfig(**settings))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).logits
