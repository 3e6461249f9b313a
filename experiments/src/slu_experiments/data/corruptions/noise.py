"""Noise in every value. Images are (b, h, w, 3) in [0, 1]; every image has its own draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Draws = Sequence[np.random.Generator]


def normals(draws: Draws, shape: tuple[int, ...]) -> np.ndarray:
    """(b, *shape) standard normal numbers, those of an image from its own generator."""
    return np.stack([each.standard_normal(shape) for each in draws])


def uniforms(draws: Draws, shape: tuple[int, ...]) -> np.ndarray:
    """(b, *shape) numbers from 0 to 1."""
    return np.stack([each.random(shape) for each in draws])


def gaussian_noise(images: np.ndarray, deviation: float, draws: Draws) -> np.ndarray:
    """Normal noise of this standard deviation."""
    return images + deviation * normals(draws, images.shape[1:])


def shot_noise(images: np.ndarray, photons: float, draws: Draws) -> np.ndarray:
    """Each value counted in photons, of which white has this many."""
    return np.stack([each.poisson(image * photons) for each, image in zip(draws, images, strict=True)]) / photons


def impulse_noise(images: np.ndarray, share: float, draws: Draws) -> np.ndarray:
    """This share of the values becomes 0 or 1, half each."""
    chance = uniforms(draws, images.shape[1:])
    return np.where(chance < share / 2, 0.0, np.where(chance < share, 1.0, images))


def speckle_noise(images: np.ndarray, deviation: float, draws: Draws) -> np.ndarray:
    """Normal noise in proportion to the value."""
    return images + images * deviation * normals(draws, images.shape[1:])
