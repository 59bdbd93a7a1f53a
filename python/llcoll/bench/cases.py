"""Inputs whose results are exact whatever the order of the additions, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Integers up to 2^k are exact in these types.
EXACT_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float8_e4m3fn: 4, torch.float8_e5m2: 3}


@dataclass(frozen=True)
class Case:
    dtype: torch.dtype
    op: str
    world_size: int

    def pattern(self, numel: int, rank: int) -> torch.Tensor:
        """Float64 on the CPU: small integers. Sums are exact in the tensor's own type as long as
        it has room for one bit a rank; beyond that one rounding remains, alike for every
        implementation that accumulates wider."""
        idx = torch.arange(numel)
        if self.op == "prod":
            return 1.0 + ((idx + rank) % 8 == 0).double()
        largest = (1 << EXACT_BITS.get(self.dtype, 20)) // self.world_size
        limit = max(2, min(13, largest + 1))
        if self.dtype.itemsize == 1 and self.op in ("sum", "avg"):
            limit = 2
        return ((idx * (rank + 3) + idx // 5 + rank) % limit).double()

    def input(self, numel: int, rank: int) -> torch.Tensor:
        return self.pattern(numel, rank).float().to(self.dtype)

    def expected(self, numel: int) -> torch.Tensor:
        inputs = [self.pattern(numel, rank) for rank in range(self.world_size)]
        result = inputs[0]
        for value in inputs[1:]:
            if self.op in ("sum", "avg"):
                result = result + value
            elif self.op == "prod":
                result = result * value
            else:
                result = (torch.maximum if self.op == "max" else torch.minimum)(result, value)
        if self.op == "avg":
            # One division in the accumulator's type; integers truncate toward zero.
            wide = torch.float64 if self.dtype == torch.float64 else torch.float32
            result = result.to(wide) / self.world_size
            if not self.dtype.is_floating_point:
                result = result.trunc()
        return result.float().to(self.dtype) if self.dtype.itemsize == 1 else result.to(self.dtype)

    @property
    def fixed_point(self) -> float:
        """Reducing it any number of times in place neither overflows nor changes it."""
        return float(self.op == "prod")


def num_wrong(got: torch.Tensor, want: torch.Tensor) -> int:
    """Elements that differ in any bit."""
    bits = BITS[got.element_size()]
    return int((got.cpu().view(bits) != want.cpu().view(bits)).sum())
