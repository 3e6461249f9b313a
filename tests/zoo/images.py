"""Networks over images: those of Hugging Face, and a U-Net that classifies every pixel."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from zoo.entry import BATCH, CLASSES, IGNORED, POINTS, Entry, generator, per_input, seeded

_SIDE = 16


def pictures(_: nn.Module) -> DataLoader:
    """A loader as image processors give it: a dict of pixel values and labels."""
    pixels = torch.randn(POINTS, 3, _SIDE, _SIDE, generator=generator())
    labels = torch.randint(CLASSES, (POINTS,), generator=generator(1))
    examples = [{"pixel_values": each, "labels": label} for each, label in zip(pixels, labels, strict=True)]
    return DataLoader(examples, BATCH)  # type: ignore[arg-type]


def segmented(_: nn.Module) -> DataLoader:
    """A loader of images with one label per pixel; the border of some has none."""
    pixels = torch.randn(POINTS, 3, 4, 4, generator=generator())
    labels = torch.randint(CLASSES, (POINTS, 4, 4), generator=generator(1))
    labels[::2, 0], labels[::3, :, -1] = IGNORED, IGNORED
    return DataLoader(TensorDataset(pixels, labels), BATCH)


def per_pixel(batch: list[Tensor]) -> Tensor:
    return batch[1] != IGNORED


class UNet(nn.Module):
    """Down once, up once, and a connection past it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.last = nn.Conv2d(12, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.first(images)
        return self.last(torch.cat([fine, self.up(self.down(fine))], 1))


def vit() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.ViTConfig(image_size=_SIDE, patch_size=4, num_labels=CLASSES, initializer_range=0.2, **sizes)
    return transformers.ViTForImageClassification(config)


def swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=_SIDE, patch_size=2, embed_dim=8, depths=(2, 1), num_heads=(2, 2), window_size=4,
        num_labels=CLASSES, initializer_range=0.2,
    )  # fmt: skip
    return transformers.SwinForImageClassification(config)


def convnext() -> nn.Module:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 12], depths=[1, 1], patch_size=2, num_stages=2, num_labels=CLASSES,
        initializer_range=0.2, layer_scale_init_value=0.5,
    )  # fmt: skip
    return transformers.ConvNextForImageClassification(config)


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=CLASSES
    )
    return transformers.ResNetForImageClassification(config)


ENTRIES = {
    "vit": Entry(seeded(vit), pictures, per_input),
    "swin": Entry(seeded(swin), pictures, per_input),
    "convnext": Entry(seeded(convnext), pictures, per_input),
    "resnet": Entry(seeded(resnet), pictures, per_input),
    "unet": Entry(seeded(UNet), segmented, per_pixel),
}
