"""Random signs, kept as bits and unpacked a piece at a time."""

from __future__ import annotations

import torch
from torch import Tensor


class PackedSigns:
    """n random signs in n/8 bytes.

    Unpacking looks a byte up in a table of 256 rows of eight signs: one small copy for eight
    numbers, where shifting and masking would take several passes.

    Cost: n/8 bytes; unpacking m signs about two copies of them, in cache.
    Numerics: the signs are exactly ±1 in every dtype.
    """

    def __init__(self, count: int, generator: torch.Generator, device: torch.device) -> None:
        size = ((count + 7) // 8,)
        self.bits = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator).to(device)
        bit = torch.arange(256)[:, None].bitwise_right_shift(torch.arange(8)) & 1
        self.table = (1 - 2 * bit).to(torch.float32).to(device)

    @property
    def state_bytes(self) -> int:
        """Bytes of the bits; the table of 8 KB is the same for all."""
        return self.bits.numel()

    @staticmethod
    def state_bytes_of(count: int) -> int:
        """The same for `count` signs, before they are drawn."""
        return (count + 7) // 8

    def unpack(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """The signs start:stop as numbers, (stop - start,)."""
        first = start // 8
        codes = self.bits[first : (stop + 7) // 8].int()
        signs = self.table.to(dtype).index_select(0, codes).view(-1)
        return signs[start - 8 * first : stop - 8 * first]
