"""Embeddings: each row of a sample goes to the word it stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slu.gradients.layers.formula import Formula, Take, Use


@dataclass(frozen=True)
class Words:
    """The gradient of a sample: the sum of the gradients at the places of each word, zero for other words.

    Attributes:
        indices: (R,) which words.
        padding: A word that has no gradient, or -1.
        shape: Of the table.
        words: Which of them are asked for.
    """

    indices: Tensor
    padding: int
    shape: tuple[int, ...]
    words: slice

    def part(self, rows: slice) -> Words:
        return replace(self, words=rows)

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent.reshape(-1, self.shape[1])

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        words = take(self.indices)
        (count, _, width), vectors = cotangents[0].shape, len(cotangents)
        asked = self.words.stop - self.words.start
        found = cotangents[0].new_zeros(count, vectors, asked, width)
        flat = found.view(-1, width)
        kept = ((words >= self.words.start) & (words < self.words.stop) & (words != self.padding)).reshape(-1)
        first = torch.arange(count, device=words.device)[:, None] * (vectors * asked)
        where = (words - self.words.start + first).reshape(-1)[kept]
        for place, each in enumerate(cotangents):
            flat.index_add_(0, where + place * asked, each.reshape(-1, width)[kept])
        return found


def embedding(use: Use) -> Formula | None:
    """`embedding`; scaled by how often a word is in the batch, a sample has no gradient of its own."""
    node = use.node
    if node._saved_scale_grad_by_freq:
        return None
    padding = int(node._saved_padding_idx)
    # An unsigned number where there is no such word.
    padding = padding if 0 <= padding < use.shape[0] else -1
    return Words(node._saved_indices.reshape(-1), padding, use.shape, slice(0, use.shape[0]))
