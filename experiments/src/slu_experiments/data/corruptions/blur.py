"""Blur. Images are (b, h, w, 3) in [0, 1]; every image has its own draws."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import correlate, gaussian_filter

from slu_experiments.data.corruptions.noise import Draws, uniforms

_EDGE = "mirror"
_STEP = 0.01


def gaussian_blur(images: np.ndarray, sigma: float, draws: Draws | None = None) -> np.ndarray:  # noqa: ARG001
    """A Gaussian of sigma pixels, each channel alone."""
    return gaussian_filter(images, (0, sigma, sigma, 0), mode="nearest")


def glass_blur(images: np.ndarray, strength: tuple[float, int, int], draws: Draws) -> np.ndarray:
    """Blurred; then every pixel changes places with one drawn within reach, some rounds; blurred again."""
    sigma, reach, rounds = strength
    b, h, w = images.shape[:3]
    shuffled = gaussian_blur(images, sigma).copy()
    steps = np.floor(uniforms(draws, (rounds, h, w, 2)) * (2 * reach + 1)).astype(int) - reach
    every = np.arange(b)
    # One pixel after another, for the swaps build on each other; all images at once.
    for turn in range(rounds):
        for row in range(h - 1 - reach, reach - 1, -1):
            for column in range(w - 1 - reach, reach - 1, -1):
                other_row, other_column = row + steps[:, turn, row, column, 0], column + steps[:, turn, row, column, 1]
                kept = shuffled[:, row, column].copy()
                shuffled[:, row, column] = shuffled[every, other_row, other_column]
                shuffled[every, other_row, other_column] = kept
    return gaussian_blur(shuffled, sigma)


def defocus_blur(images: np.ndarray, strength: tuple[float, float], draws: Draws) -> np.ndarray:  # noqa: ARG001
    """A disk of this radius, its rim softened by 3 × 3 Gaussian weights."""
    radius, sigma = strength
    reach = int(np.ceil(radius)) + 1
    place = np.arange(-reach, reach + 1)
    disk = (place[:, None] ** 2 + place**2 <= radius**2).astype(float)
    side = np.exp(-(np.array([-1, 0, 1]) ** 2) / (2 * sigma**2))
    soft = correlate(disk / disk.sum(), np.outer(side, side) / side.sum() ** 2, mode="constant")
    return correlate(images, soft[None, :, :, None], mode=_EDGE)


def motion_blur(images: np.ndarray, strength: tuple[float, float], draws: Draws) -> np.ndarray:
    """A Gaussian that runs one way along a line, at an angle up to 45 degrees either way."""
    angles = (uniforms(draws, ()) - 0.5) * 90
    return moved(images, *strength, angles)


def moved(images: np.ndarray, radius: float, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """Each image (h, w, c) smeared along its own angle (b,).

    The pixel nearest to i steps along the line has the weight exp(-i²/2σ²).
    """
    taps = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    weights /= weights.sum()
    h, w = images.shape[1:3]
    every, row, column = np.ogrid[: len(images), :h, :w]
    out = np.zeros_like(images)
    for tap, weight in zip(taps, weights, strict=True):
        down = np.rint(tap * np.sin(np.radians(degrees))).astype(int)[:, None, None]
        right = np.rint(tap * np.cos(np.radians(degrees))).astype(int)[:, None, None]
        out += weight * images[every, np.clip(row + down, 0, h - 1), np.clip(column + right, 0, w - 1)]
    return out


def zoom_blur(images: np.ndarray, furthest: float, draws: Draws) -> np.ndarray:  # noqa: ARG001
    """The mean of the image and of its enlargements about the centre, from 1 in steps of 0.01."""
    factors = 1 + _STEP * np.arange(round((furthest - 1) / _STEP) + 1)
    total = images + sum(enlarged(images, factor) for factor in factors)
    return total / (len(factors) + 1)


def enlarged(images: np.ndarray, factor: float) -> np.ndarray:
    """Images (b, h, w, c) enlarged about their centre, bilinear, cut to their size."""
    down, across = (_lens(side, factor) for side in images.shape[1:3])
    stretched = down @ np.moveaxis(images, 3, 1) @ across.T
    return np.moveaxis(stretched, 1, 3)


def _lens(side: int, factor: float) -> np.ndarray:
    """(side, side): row i has the weights of the pixels that pixel i is interpolated from."""
    middle = (side - 1) / 2
    place = middle + (np.arange(side) - middle) / factor
    low = np.clip(np.floor(place).astype(int), 0, side - 2)
    matrix = np.zeros((side, side))
    matrix[np.arange(side), low] = 1 - (place - low)
    matrix[np.arange(side), low + 1] = place - low
    return matrix
