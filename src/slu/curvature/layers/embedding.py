"""Embeddings: each row of a sample goes to the word it stands for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slu.curvature.layers.formula import Formula, Take, Use


@dataclass(frozen=True)
class Words:
    """The gradient of a sample: the sum of the gradients at the places of each word, zero for other words.

    Attributes:
        indices: (R,) which words.
        padding: A word that has no gradient, or -1.
    """

    indices: Tensor
    padding: int
    shape: tuple[int, ...]

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent.reshape(-1, self.shape[1])

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        words = take(self.indices)
        (count, _, width), vectors, vocabulary = cotangents[0].shape, len(cotangents), self.shape[0]
        found = cotangents[0].new_zeros(count, vectors, vocabulary, width)
        flat = found.view(-1, width)
        first = torch.arange(count, device=words.device)[:, None] * (vectors * vocabulary)
        kept = None if self.padding < 0 else (words != self.padding).reshape(-1)
        for place, each in enumerate(cotangents):
            where = (words + first + place * vocabulary).reshape(-1)
            values = each.reshape(-1, width)
            if kept is not None:
                where, values = where[kept], values[kept]
            flat.index_add_(0, where, values)
        return found


def embedding(use: Use) -> Formula | None:
    """`embedding`; scaled by how often a word is in the batch, a sample has no gradient of its own."""
    node = use.node
    if node._saved_scale_grad_by_freq:
        return None
    padding = int(node._saved_padding_idx)
    # An unsigned number where there is no such word.
    padding = padding if 0 <= padding < use.shape[0] else -1
    return Words(node._saved_indices.reshape(-1), padding, use.shape)
