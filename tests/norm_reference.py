"""The fused ops' arithmetic once more, in numpy, in the documented order. numpy rounds square roots
and quotients to nearest; torch's vector square root does not always."""

from __future__ import annotations

import numpy as np
import torch

F = np.float32


def tree_sum(squares: np.ndarray) -> np.ndarray:
    """Balanced binary tree over the last dimension, neighbours first, padded with zeros."""
    n = squares.shape[-1]
    size = 1 << (n - 1).bit_length()
    padded = np.zeros((*squares.shape[:-1], size), dtype=F)
    padded[..., :n] = squares
    while padded.shape[-1] > 1:
        padded = padded[..., 0::2] + padded[..., 1::2]
    return padded


def exact_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_bias: float = 0.0,
    residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the norm in float32, before its rounding, the rounded residual)."""
    if residual is not None:
        x = (x.float() + residual.float()).to(x.dtype)
    rows = x.float().numpy()
    mean = tree_sum(rows * rows) / F(x.shape[-1])
    scale = F(1) / np.sqrt(mean + F(eps))
    y = (rows * scale) * (weight.float().numpy() + F(weight_bias))
    return torch.from_numpy(y), x


def fp8(y: torch.Tensor, scale: np.ndarray) -> torch.Tensor:
    quotient = torch.from_numpy(y.numpy() / scale)
    return quotient.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)


def row_scales(y: torch.Tensor) -> np.ndarray:
    largest = np.abs(y.numpy()).max(axis=-1, keepdims=True) / F(448)
    return np.maximum(largest, F(1) / F(448 * 512))
