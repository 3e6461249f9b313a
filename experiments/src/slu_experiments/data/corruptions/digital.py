"""What cameras and files do. Images are (b, h, w, 3) in [0, 1]; every image has its own draws."""

from __future__ import annotations

import io

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

from slu_experiments.data.corruptions.noise import Draws, uniforms

_CORNERS = np.array([[1, 1], [1, -1], [-1, -1]])


def contrast(images: np.ndarray, factor: float, draws: Draws) -> np.ndarray:  # noqa: ARG001
    """Each channel drawn towards its mean."""
    mean = images.mean((1, 2), keepdims=True)
    return (images - mean) * factor + mean


def brightness(images: np.ndarray, amount: float, draws: Draws) -> np.ndarray:  # noqa: ARG001
    """Added to the value of hue, saturation and value."""
    value = images.max(3, keepdims=True)
    wanted = np.clip(value + amount, 0, 1)
    return np.where(value > 0, images * wanted / np.maximum(value, 1e-12), wanted)


def saturate(images: np.ndarray, strength: tuple[float, float], draws: Draws) -> np.ndarray:  # noqa: ARG001
    """Saturation times a plus b. Grey has the hue of red, as is usual, and turns to it where b is above 0."""
    factor, offset = strength
    value = images.max(3, keepdims=True)
    below = value - images  # of each channel; value times saturation is the largest
    depth = below.max(3, keepdims=True)
    saturation = depth / np.maximum(value, 1e-12)
    wanted = np.clip(saturation * factor + offset, 0, 1)
    red = np.array([0.0, 1.0, 1.0])
    direction = np.where(depth > 0, below / np.maximum(depth, 1e-12), red)
    return value - direction * wanted * value


def jpeg_compression(images: np.ndarray, quality: int, draws: Draws) -> np.ndarray:  # noqa: ARG001
    """Written as JPEG of this quality and read again."""
    from PIL import Image

    out = np.empty_like(images)
    for place, image in enumerate(images):
        file = io.BytesIO()
        Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(file, "JPEG", quality=quality)
        with Image.open(file) as compressed:
            out[place] = np.asarray(compressed) / 255
    return out


def pixelate(images: np.ndarray, share: float, draws: Draws) -> np.ndarray:  # noqa: ARG001
    """Made smaller to this share of the side by boxes, and large again."""
    out = images
    for axis in (1, 2):
        side = images.shape[axis]
        small = int(side * share)
        boxes = _boxes(side, small)
        back = np.floor((np.arange(side) + 0.5) * small / side).astype(int)
        out = np.moveaxis(np.tensordot(boxes[back], out, (1, axis)), 0, axis)
    return out


def elastic_transform(images: np.ndarray, strength: tuple[float, float, float], draws: Draws) -> np.ndarray:
    """An affine map that moves three points a little, then a smooth field of displacements.

    The three numbers are shares of the side: the displacements' size, how far they are smoothed,
    and how far the three points may move either way.
    """
    h, w = images.shape[1:3]
    size, sigma, jitter = (share * h for share in strength)
    place = np.stack(np.meshgrid(np.arange(h), np.arange(w), indexing="ij")).astype(float)
    moves = (2 * uniforms(draws, (3, 2)) - 1) * jitter
    fields = (2 * uniforms(draws, (2, h, w)) - 1) if size else np.zeros((len(images), 2, h, w))
    out = np.empty_like(images)
    for number, image in enumerate(images):
        field = fields[number]
        if size:
            field = size * gaussian_filter(field, (0, sigma, sigma), mode="reflect", truncate=3)
        inverse, shift = _affine(h, w, moves[number])
        source = np.tensordot(inverse, place + field, 1) + shift[:, None, None]
        for channel in range(3):
            out[number, ..., channel] = map_coordinates(image[..., channel], source, order=1, mode="mirror")
    return out


def _affine(h: int, w: int, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a pixel comes from, A x + b, when three points about the centre are moved."""
    before = np.array([h // 2, w // 2]) + _CORNERS * (min(h, w) // 3)
    after = before + moves
    # Rows (row, column, 1) of the points after the move times the solution are the points before.
    solved = np.linalg.solve(np.c_[after, np.ones(3)], before)
    return solved[:2].T, solved[2]


def _boxes(side: int, small: int) -> np.ndarray:
    """(small, side): row i has the share of every pixel in box i, each row summing to one."""
    edges = np.arange(small + 1) * side / small
    pixel = np.arange(side)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return np.clip(overlap, 0, None) / (side / small)
