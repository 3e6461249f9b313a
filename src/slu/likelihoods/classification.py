"""Softmax over t classes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from slu.errors import DataError
from slu.likelihoods.leading import subspace_iteration

_STEPS = 3  # of Newton's method; the relative error of λ is then below 1e-10, and rounding after a fourth
_TIE = 1e-140  # by which tied classes are told apart; its square is a number
_SPARE = 4  # directions iterated beside those asked for


class Classification:
    """Cross-entropy of a softmax: H = diag(π) - π πᵀ with π = softmax(outputs).

    The factor is L = diag(√π) R, where R reflects √π to minus the unit vector of the likeliest class m and has zeros
    as its column m: R Rᵀ = I - √π √πᵀ, so L Lᵀ = H. Column c is a shift of the prediction between c and m.
    These are t - 1 columns, as many as the rank of H; the t columns √π_j (e_j - π), gradients of the loss at each
    label, give H as well, but at unsure points a random mixture of them varies more (`OutputSpace.roots`).

    Numerics:
        A confident network has 1 - π_m far below the rounding of π_m, and the plain formulas
        subtract two nearly equal numbers there. Here every product is written with the *other*
        classes instead, which keeps full relative accuracy down to underflow.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _check(outputs)
        if targets.shape != outputs.shape[:1] or targets.is_floating_point():
            raise DataError(
                f"classification needs one class index per point: targets of shape ({len(outputs)},) and an integer "
                f"type, got {tuple(targets.shape)} {targets.dtype}"
            )
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= outputs.shape[1]:
            raise DataError(f"class indices must lie in 0 to {outputs.shape[1] - 1}, got {low} to {high}")
        return functional.cross_entropy(outputs, targets.long(), reduction="none")

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        probability = _check(outputs).softmax(-1)
        return probability * (vectors * _sum_of_others(probability) - _sum_of_others(probability * vectors))

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        root = (0.5 * _check(outputs).log_softmax(-1)).exp()
        place = outputs.argmax(-1, keepdim=True)
        likeliest = torch.zeros_like(outputs, dtype=torch.bool).scatter(-1, place, value=True)
        reach = 1 + root.gather(-1, place)
        if transpose:
            vectors = vectors.broadcast_to(torch.broadcast_shapes(vectors.shape, outputs.shape))
            relative = vectors - vectors.gather(-1, place.expand(*vectors.shape[:-1], 1))
            reflected = relative - (root.square() * relative).sum(-1, keepdim=True) / reach
            return (root * reflected).masked_fill(likeliest, 0.0)
        others = vectors.masked_fill(likeliest, 0.0)
        total = (root * others).sum(-1, keepdim=True)
        return torch.where(likeliest, -root * total, root * (others - root * total / reach))

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Inverts the cumulative distribution with the first uniform number of each point."""
        cumulative = _check(outputs).double().softmax(-1).cumsum(-1)
        drawn = torch.searchsorted(cumulative, uniform[:, :1].double().contiguous())
        return drawn.squeeze(-1).clamp(max=outputs.shape[-1] - 1)

    def trace(self, outputs: Tensor) -> Tensor:
        """(b,) tr H = Σ π (1 - π), in float64."""
        probability = _check(outputs).double().softmax(-1)
        return (probability * _sum_of_others(probability)).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """(b,) of the softmax, in nats, in float64.

        Numerics: the likeliest class' probability may round to 1; its part is taken from the sum of the others.
        """
        probability = _check(outputs).double().softmax(1)
        others = probability.scatter(1, probability.argmax(1, keepdim=True), 0.0)
        rest = others.sum(1)
        return torch.special.entr(others).sum(1) - torch.special.xlog1py(1 - rest, -rest)

    def leading(self, outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Directions u (b, m, t) of unit length and √λ (b, m), largest first; m is `count`, at most t.

        With π₁ ≥ π₂ ≥ … the largest eigenvalue λ = π₂ x solves a secular equation with one term for each class,
        1/φ(x) = 1 - x r, where r = π₂/π₁, φ(x) = Σ q_i / (x - q_i) over all classes but the likeliest, q_i = π_i/π₂.
        The left side is a harmonic mean of linear functions, so it is concave and increasing; Newton's method from
        x = 2/(1 + r), which is the solution for two classes and never above it for more, increases to the root.
        The eigenvector has the entries -q_i / (x - q_i), and φ(x) for the likeliest class.

        Cost: O(t) per point for m = 1; for more, 20 products with H for each of m + 4 vectors.

        Numerics: float64. Solved for x - 1, with differences of probabilities from `expm1`, so nothing cancels near
        ties. Only ratios enter the direction: where H underflows it is the limit, the difference of the two largest
        outputs if the third is far behind, with √λ = 0. For more directions see `subspace_iteration`.
        """
        wide = _check(outputs).double()
        largest, places = wide.topk(2, -1)
        first, second = largest.split(1, -1)
        gap = second - first
        behind = gap.expm1().clamp_(max=-_TIE)  # r - 1
        r = behind + 1
        others = (wide - second).scatter_(-1, places[:, :1], -torch.inf).expm1_()  # q - 1, of the likeliest -1
        ratios = others + 1
        excess = -behind / (r + 1)  # x - 1
        for _ in range(_STEPS):
            distances = excess - others
            terms = ratios / distances
            phi = terms.sum(-1, keepdim=True)
            squared = phi * phi
            slope = torch.addcmul((terms / distances).sum(-1, keepdim=True), r, squared)
            value = torch.addcmul(phi, torch.addcmul(behind, excess, r), squared)
            excess = torch.addcdiv(excess, value, slope, value=-1)
        terms = ratios / (others - excess)
        vector = terms.scatter_(-1, places[:, :1], -terms.sum(-1, keepdim=True))
        direction = vector / torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
        share = torch.log1p(r * ratios.sum(-1, keepdim=True))  # minus the logarithm of π₁
        root = (0.5 * (gap - share + excess.log1p())).exp()
        if count == 1:
            return direction.to(outputs.dtype)[:, None], root
        return self._leading_of_many(wide, direction, root, min(count, outputs.shape[1]), outputs.dtype)

    def _leading_of_many(
        self, wide: Tensor, direction: Tensor, root: Tensor, count: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The same for m > 1, from the exact first direction and √λ and the differences of the likeliest classes.

        H maps the constant to zero. It must not mix with directions whose λ is lost in the rounding of the largest, far
        from the data, for a network may move all outputs alike by far more. So it is projected out of every step,
        and added as the last direction for m = t.
        """
        size = wide.shape[1]
        places = wide.topk(min(count + _SPARE + 1, size), -1).indices[..., None]
        classes = wide.new_zeros(*places.shape[:2], size).scatter(-1, places, 1.0)
        starts = torch.cat([direction[:, None], classes[:, :1] - classes[:, 2:]], 1)

        product = partial(self.hessian_product, wide)
        directions, roots = subspace_iteration(product, starts, min(count, size - 1), centred=True)
        roots = torch.cat([root, roots[:, 1:]], 1)
        if count == size:
            constant = torch.full_like(directions[:, :1], size**-0.5)
            directions, roots = torch.cat([directions, constant], 1), functional.pad(roots, (0, 1))
        return directions.to(dtype), roots


def _check(outputs: Tensor) -> Tensor:
    if outputs.shape[-1] < 2:
        raise DataError(
            "classification needs at least two outputs per point, got one, whose softmax is always 1; "
            "for a single logit use the likelihood 'multilabel'"
        )
    return outputs


def _sum_of_others(values: Tensor) -> Tensor:
    """For each entry the sum of all other entries of the last dimension, without subtraction."""
    # `total - own` would cancel; running sums from both ends, shifted by one place, do not.
    before = functional.pad(values.cumsum(-1)[..., :-1], (1, 0))
    after = functional.pad(values.flip(-1).cumsum(-1)[..., :-1], (1, 0)).flip(-1)
    return before + after
