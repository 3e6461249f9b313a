"""Weather. Images are (b, h, w, 3) in [0, 1]; every image has its own draws."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import binary_erosion, correlate, distance_transform_edt, gaussian_filter, uniform_filter

from slu_experiments.data.corruptions.blur import enlarged, moved
from slu_experiments.data.corruptions.noise import Draws, normals, uniforms

_GREY = np.array([0.299, 0.587, 0.114])
_COLOURS = {"water": np.array([175, 238, 238]) / 255, "mud": np.array([63, 42, 20]) / 255}
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
_FURTHEST = 20  # pixels from a drop's outline, beyond which its light no longer changes
_THICK = 0.8  # mud thinner than this is not seen


def fog(images: np.ndarray, strength: tuple[float, float], draws: Draws) -> np.ndarray:
    """A cloudy map added in this weight, and the image darkened so that its brightest stays as bright."""
    weight, decay = strength
    brightest = images.max((1, 2, 3), keepdims=True)
    clouds = np.stack([cloud(images.shape[1], decay, each) for each in draws])[..., None]
    return (images + weight * clouds) * brightest / (brightest + weight)


def cloud(side: int, decay: float, draw: np.random.Generator) -> np.ndarray:
    """A (side, side) diamond-square map in [0, 1] with edges that meet; side is a power of two.

    Points between known ones get their mean and a uniform draw. With each halving of the
    distance the draws shrink by the square of the decay, as in the benchmark.
    """
    heights = np.zeros((side, side))
    step, swing = side, 1.0
    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        centres = _mean(corners, np.roll(corners, -1, 0), np.roll(corners, -1, 1), np.roll(corners, (-1, -1), (0, 1)))
        centres += swing * draw.uniform(-1, 1, corners.shape)
        heights[half::step, half::step] = centres
        # A point on the side of a square lies between two corners and the centres of two squares.
        top = _mean(corners, np.roll(corners, -1, 1), centres, np.roll(centres, 1, 0))
        heights[::step, half::step] = top + swing * draw.uniform(-1, 1, corners.shape)
        left = _mean(corners, np.roll(corners, -1, 0), centres, np.roll(centres, 1, 1))
        heights[half::step, ::step] = left + swing * draw.uniform(-1, 1, corners.shape)
        step, swing = half, swing / decay**2
    heights -= heights.min()
    return heights / heights.max()


def snow(images: np.ndarray, strength: tuple[float, ...], draws: Draws) -> np.ndarray:
    """Flakes, enlarged and blown one way, added with their half-turn to a paler image."""
    mean, deviation, zoom, threshold, radius, sigma, weight = strength
    flakes = mean + deviation * normals(draws, (*images.shape[1:3], 1))
    flakes = enlarged(flakes, zoom)
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)
    angles = -135 + 90 * uniforms(draws, ())
    flakes = moved(flakes, radius, sigma, angles)
    pale = np.maximum(images, (images @ _GREY)[..., None] * 1.5 + 0.5)
    return weight * images + (1 - weight) * pale + flakes + flakes[:, ::-1, ::-1]


def spatter(images: np.ndarray, strength: tuple[float, float, float, float, float, str], draws: Draws) -> np.ndarray:
    """Drops of water that catch the light, or splashes of mud that cover."""
    mean, deviation, sigma, threshold, amount, liquid = strength
    surface = mean + deviation * normals(draws, images.shape[1:3])
    surface = gaussian_filter(surface, (0, sigma, sigma), mode="nearest")
    colour = _COLOURS[liquid]
    if liquid == "mud":
        splash = gaussian_filter((surface > threshold).astype(float), (0, amount, amount), mode="nearest")[..., None]
        splash[splash < _THICK] = 0
        return images * (1 - splash) + colour * splash
    drops = np.stack([_lit(each) for each in np.where(surface < threshold, 0, surface)])[..., None]
    return images + amount * drops * colour


def _lit(drops: np.ndarray) -> np.ndarray:
    """How bright each pixel of the drops (h, w) is, in [0, 1].

    The benchmark embosses the distance to the drops' edges, which it finds by Canny's detector;
    here the outline of each drop stands for them.
    """
    inside = drops > 0
    outline = inside & np.logical_not(binary_erosion(inside))
    if not outline.any():
        return np.zeros_like(drops)
    distance = np.minimum(np.asarray(distance_transform_edt(~outline)), _FURTHEST)
    even = _equalized(uniform_filter(distance, 3, mode="mirror"))
    relief = np.clip(correlate(even, _EMBOSS, mode="mirror"), 0, 1)
    bright = drops * uniform_filter(relief, 3, mode="mirror")
    return bright / max(bright.max(), 1e-12)


def _equalized(values: np.ndarray) -> np.ndarray:
    """The share of values that are smaller: the histogram made flat."""
    _, place, counts = np.unique(np.round(values, 6), return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    return (below / max(values.size - 1, 1))[place.reshape(values.shape)]


def _mean(*arrays: np.ndarray) -> np.ndarray:
    return np.mean(arrays, axis=0)
