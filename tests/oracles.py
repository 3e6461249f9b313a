"""Dense float64 answers to compare with, written as plainly as possible and without slu's machinery."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy.linalg
import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """A transformer encoder as people write it, pooled to three outputs."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens).mean(1))


class Tied(nn.Module):
    """One weight used under two names, and a layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.into.weight
        self.out = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.again(self.into(self.into(inputs).tanh()).tanh()).tanh())


def network(kind: str, seed: int = 0, outputs: int = 3) -> tuple[nn.Module, Tensor]:
    """A tiny float64 network in training mode, and 12 inputs for it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "mlp":
            model, inputs = (
                nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)),
                torch.randn(12, 4),
            )
        elif kind == "conv":
            model = nn.Sequential(
                nn.Conv2d(1, 3, 3),
                nn.BatchNorm2d(3),
                nn.ReLU(inplace=True),
                nn.Flatten(),
                nn.Linear(3 * 16, outputs),
            )
            inputs = torch.randn(12, 1, 6, 6)
            model(inputs)  # running statistics that are not the initial ones
        elif kind == "encoder":
            model, inputs = Encoder(), torch.randn(12, 5, 8)
        elif kind == "tied":
            model, inputs = Tied(), torch.randn(12, 4)
        else:
            raise ValueError(kind)
    return model.double().train(), inputs.double()


NETWORKS = ("mlp", "conv", "encoder", "tied")


def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Outputs in eval mode; the mode is put back."""
    training = model.training
    model.eval()
    try:
        return model(inputs)
    finally:
        model.train(training)


def jacobian(model: nn.Module, inputs: Tensor, names: list[str] | None = None) -> Tensor:
    """J (b, t, p), one plain backward pass an entry of the outputs."""
    parameters = [value for name, value in model.named_parameters() if names is None or name in names]
    outputs = outputs_of(model, inputs)
    result = outputs.new_zeros(*outputs.shape, sum(value.numel() for value in parameters))
    for i in range(outputs.shape[0]):
        for j in range(outputs.shape[1]):
            grads = torch.autograd.grad(outputs[i, j], parameters, retain_graph=True, materialize_grads=True)
            result[i, j] = torch.cat([grad.flatten() for grad in grads])
    return result


def output_hessian(likelihood: str, outputs: Tensor) -> Tensor:
    """H (b, t, t), from the textbook formulas."""
    outputs = outputs.detach()
    if likelihood == "classification":
        prob = outputs.softmax(1)
        return torch.diag_embed(prob) - prob[:, :, None] * prob[:, None, :]
    if likelihood == "multilabel":
        prob = outputs.sigmoid()
        return torch.diag_embed(prob * (1 - prob))
    if likelihood == "regression":
        return torch.eye(outputs.shape[1], dtype=outputs.dtype).expand(len(outputs), -1, -1)
    raise ValueError(likelihood)


def output_factor(likelihood: str, outputs: Tensor) -> Tensor:
    """(b, t, t): L with L Lᵀ the Hessian in the outputs; readings per output depend on the choice.

    For classes diag(√π) times the reflection of √π to the likeliest class, whose own column is left out.
    """
    outputs = outputs.detach()
    if likelihood == "classification":
        root = outputs.softmax(1).sqrt()
        top = torch.nn.functional.one_hot(outputs.argmax(1), outputs.shape[1]).to(root)
        normal = torch.nn.functional.normalize(root + top, dim=1)
        reflection = torch.eye(outputs.shape[1]).to(root) - 2 * normal[:, :, None] * normal[:, None, :]
        return root[:, :, None] * reflection * (1 - top)[:, None, :]
    return output_hessian(likelihood, outputs).sqrt()


def leading_directions(likelihood: str, outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(b, m, t) directions and (b, m) eigenvalues of H, largest first, by a dense eigendecomposition.

    Of a regression, which has no leading ones, the first rows of a Hadamard matrix with signs for its columns.
    """
    outputs = outputs.detach()
    points, size = outputs.shape
    if likelihood == "regression" and count < size:
        words = hashlib.blake2b(f"0\x1fleading\x1f{size}".encode(), digest_size=8).digest()
        draw = torch.Generator().manual_seed(int.from_bytes(words, "big") >> 1)
        signs = torch.randint(2, (size,), generator=draw).double() * 2 - 1
        order = 1 << (size - 1).bit_length()
        mixtures = torch.from_numpy(scipy.linalg.hadamard(order)[:count, :size]).double() * signs / size**0.5
        entries = output_hessian(likelihood, outputs).diagonal(dim1=1, dim2=2)
        mixed = mixtures * entries.sqrt()[:, None]
        trace = entries.sum(1, keepdim=True)
        return mixed / mixed.norm(dim=-1, keepdim=True), (trace / count).expand(points, count)
    values, vectors = torch.linalg.eigh(output_hessian(likelihood, outputs))
    return vectors.flip(-1).transpose(1, 2)[:, :count], values.flip(-1)[:, :count].clamp(min=0)


def measured_directions(likelihood: str, outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same with eigenvalues raised by one factor per point, so that they add up to tr H."""
    directions, values = leading_directions(likelihood, outputs, count)
    trace = output_hessian(likelihood, outputs.detach()).diagonal(dim1=1, dim2=2).sum(1, keepdim=True)
    return directions, values * trace / values.sum(1, keepdim=True)


@lru_cache(maxsize=8)
def dense(kind: str) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """The network, its 12 points, 5 queries and their J; shared, so not to be changed."""
    model, inputs = network(kind)
    queries = 1.5 * inputs[:5] + 0.3
    return model, inputs, queries, jacobian(model, queries)


def rows_of(kind: str, likelihood: str, reading: str) -> Tensor:
    """J of the queries, or LᵀJ for the readings of the Fisher factor."""
    model, _, queries, rows = dense(kind)
    if not reading.startswith("fisher"):
        return rows
    return torch.einsum("bij,bip->bjp", output_factor(likelihood, outputs_of(model, queries)), rows)


def ggn(model: nn.Module, inputs: Tensor, likelihood: str, names: list[str] | None = None) -> Tensor:
    """G (p, p) = Σ Jᵀ H J."""
    rows = jacobian(model, inputs, names)
    hessian = output_hessian(likelihood, outputs_of(model, inputs))
    return torch.einsum("bip,bij,bjq->pq", rows, hessian, rows)


def leading_eigenvectors(matrix: Tensor, rank: int) -> Tensor:
    """(p, rank) orthonormal eigenvectors of the largest eigenvalues."""
    return torch.linalg.eigh(matrix)[1].flip(1)[:, :rank]


def read_as(reading: str, energy: Tensor, size: Tensor) -> Tensor:
    """The energy left open, or its share of the rows' squared length; of no length, 0."""
    return torch.where(size > 0, energy / size, 0.0) if reading.endswith("relative") else energy


def projected_out(rows: Tensor, basis: Tensor) -> Tensor:
    """‖(I - U Uᵀ) g‖² for rows g (..., p) and orthonormal columns U (p, r)."""
    return (rows - (rows @ basis) @ basis.T).square().sum(-1)


def decaying(p: int, rank: int, decades: float, seed: int = 0) -> Tensor:
    """A positive semidefinite (p, p) matrix with `rank` eigenvalues from 1 down by `decades` powers of ten."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.linalg.qr(torch.randn(p, rank, generator=generator, dtype=torch.float64))[0]
    values = torch.logspace(0, -decades, rank, dtype=torch.float64)
    return (vectors * values) @ vectors.T


def krylov_basis(matrix: Tensor, start: Tensor, steps: int) -> Tensor:
    """(p, steps) orthonormal basis of span{v, Gv, …}: each G q orthogonalized three times in float64."""
    matrix, vector = matrix.double(), start.double()
    columns: list[Tensor] = []
    for _ in range(steps):
        for _ in range(3):
            for column in columns:
                vector = vector - column * (column @ vector)
        columns.append(vector / vector.norm())
        vector = matrix @ columns[-1]
    return torch.stack(columns, 1)


def largest_angle(first: Tensor, second: Tensor) -> float:
    """Sine of the largest angle between the spans of two orthonormal bases (p, r) of equal rank."""
    assert first.shape == second.shape
    return float(torch.linalg.matrix_norm(second - first @ (first.T @ second), 2))


LIKELIHOODS = ("classification", "regression", "multilabel")


def targets_for(likelihood: str, points: int = 12, outputs: int = 3, seed: int = 0) -> Tensor:
    """Targets as a loader would bring them."""
    draw = torch.Generator().manual_seed(seed)
    if likelihood == "classification":
        return torch.randint(outputs, (points,), generator=draw)
    if likelihood == "multilabel":
        return torch.randint(2, (points, outputs), generator=draw).double()
    return torch.randn(points, outputs, generator=draw, dtype=torch.float64)


def losses(likelihood: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """(b,) losses, from the textbook formulas."""
    if likelihood == "classification":
        return -outputs.log_softmax(1)[torch.arange(len(outputs)), targets]
    if likelihood == "multilabel":
        prob = outputs.sigmoid()
        return -(targets * prob.log() + (1 - targets) * (1 - prob).log()).sum(1)
    if likelihood == "regression":
        return (outputs - targets).square().sum(1) / 2
    raise ValueError(likelihood)


def outer_products(model: nn.Module, inputs: Tensor, targets: Tensor, likelihood: str) -> Tensor:
    """Σ g gᵀ (p, p) of the gradients g of each point's loss, one backward pass a point."""
    total = losses(likelihood, outputs_of(model, inputs), targets)
    parameters = list(model.parameters())
    rows = [torch.autograd.grad(one, parameters, retain_graph=True, materialize_grads=True) for one in total]
    stacked = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    return stacked.T @ stacked


def hessian(model: nn.Module, inputs: Tensor, targets: Tensor, likelihood: str) -> Tensor:
    """Σ ∇²ℓ (p, p), one row a parameter: the gradient of that entry of the gradient."""
    parameters = list(model.parameters())
    # The fused attention kernels have no second derivative.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        total = losses(likelihood, outputs_of(model, inputs), targets).sum()
        slopes = torch.autograd.grad(total, parameters, create_graph=True)
        slope = torch.cat([part.flatten() for part in slopes])
        basis = torch.eye(len(slope), dtype=slope.dtype)
        rows = torch.autograd.grad(slope, parameters, basis, is_grads_batched=True, materialize_grads=True)
    return torch.cat([part.flatten(1) for part in rows], 1)


WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""The increment of splitmix64."""


def splitmix(word: int) -> int:
    """The output function of splitmix64, on Python's integers."""
    word &= WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def content_number(point: Sequence[np.ndarray], seed: int, purpose: str = "calibration") -> float:
    """The number u in (0, 1) of one point, given as its arrays: a function of their bits, the seed and a word."""
    return content_numbers(point, seed, purpose, 1)[0]


def content_numbers(point: Sequence[np.ndarray], seed: int, purpose: str, count: int) -> list[float]:
    """Several such numbers.

    The bits of every number, read as a signed integer (of 64 bits as two), times the odd multiplier of its place, have
    their high half added to the low one by exclusive or, and are summed modulo 2⁶⁴; the sums of the arrays go one after
    the other through splitmix64; the top 52 bits of its outputs from the second on are the numbers.
    """
    key = 0
    for place, array in enumerate(point):
        width = {2: np.int16, 4: np.int32, 8: np.int32}[array.itemsize]
        whole = array.view(width) if array.dtype.kind == "f" or array.itemsize == 8 else array
        numbers = [int(number) for number in whole.ravel()]
        products = [number * (splitmix(GOLDEN * at) | 1) % 2**64 for at, number in enumerate(numbers, start=1)]
        key = splitmix(key + sum(product ^ product >> 32 for product in products) + place)
    text = f"{seed}\x1f{purpose}".encode()
    own = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
    first = splitmix(key + own)
    return [((splitmix(first + GOLDEN * place) >> 12) + 0.5) / 2.0**52 for place in range(1, count + 1)]


def held_out(numbers: Sequence[float], share: float, most: int, least: int, left: int = 0) -> list[bool]:
    """Which points are held out, by their numbers u: those below the share; the `least` or the `most` smallest instead.

    And no more than leave so many points in the data.
    """
    chosen = [number < share for number in numbers]
    if sum(chosen) < least:
        last = sorted(numbers)[min(least, len(numbers)) - 1]
        chosen = [number <= last for number in numbers]
    for limit in (most, len(numbers) - left):
        kept = sorted(number for number, out in zip(numbers, chosen, strict=True) if out)
        if len(kept) > limit:
            chosen = [number < kept[limit] for number in numbers]
    return chosen
