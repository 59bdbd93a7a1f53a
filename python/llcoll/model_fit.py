"""The performance model's formula and its fit (llcoll.model has it in words)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


def rounds_of(algorithm: str) -> int:
    """Exchanges that follow one another."""
    return 1 if algorithm.startswith("one_shot") else 2


def traffic_of(algorithm: str, world_size: int) -> float:
    """What a rank sends, in messages."""
    packets = 2 if algorithm.endswith("_ll") else 1  # half of an LL packet is its flag
    peers = world_size - 1
    if algorithm.startswith("one_shot"):
        return packets * peers
    return packets * 2 * peers / world_size


@dataclass(frozen=True)
class Point:
    algorithm: str
    world_size: int
    num_bytes: int
    us: float


@dataclass(frozen=True)
class Terms:
    """One algorithm."""

    overhead_us: float
    peer_us: float
    slope: float  # us per byte of traffic
    far: float  # more of it beyond the knee
    knee_bytes: int
    fitted_error: float  # root mean square of the relative errors at the fitted points


@dataclass(frozen=True)
class Model:
    bound_us: float
    terms: dict[str, Terms]

    def predict(self, algorithm: str, num_bytes: int, world_size: int) -> float:
        """us."""
        t = self.terms[algorithm]
        beyond = max(0, num_bytes - t.knee_bytes)
        return (
            rounds_of(algorithm) * self.bound_us
            + t.overhead_us
            + t.peer_us * (world_size - 1)
            + traffic_of(algorithm, world_size) * (t.slope * num_bytes + t.far * beyond)
        )

    def fastest(self, num_bytes: int, world_size: int) -> str:
        return min(self.terms, key=lambda name: self.predict(name, num_bytes, world_size))

    def crossovers(self, world_size: int, largest: int = 64 << 20) -> list[tuple[int, str]]:
        """(from this size on, this algorithm is fastest), to an eighth of a power of two."""
        found: list[tuple[int, str]] = []
        for step in range(8 * 3, 8 * largest.bit_length()):
            num_bytes = round(2 ** (step / 8))
            name = self.fastest(num_bytes, world_size)
            if num_bytes <= largest and (not found or found[-1][1] != name):
                found.append((num_bytes, name))
        return found


def _least_squares(features: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, float]:
    """Non-negative, by trying every set of features: there are four."""
    best, best_error = np.zeros(features.shape[1]), float(np.sum(wanted**2))
    for size in range(1, features.shape[1] + 1):
        for chosen in itertools.combinations(range(features.shape[1]), size):
            x, _, rank, _ = np.linalg.lstsq(features[:, chosen], wanted, rcond=None)
            if rank < size or (x < 0).any():
                continue
            error = float(np.sum((features[:, chosen] @ x - wanted) ** 2))
            if error < best_error - 1e-12:
                best_error = error
                best = np.zeros(features.shape[1])
                best[list(chosen)] = x
    return best, best_error


def fit(points: Iterable[Point], bound_us: float) -> Model:
    """At least one point an algorithm; more, and of several world sizes, tell more terms apart."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.algorithm, []).append(point)
    terms = {}
    for algorithm, own in groups.items():
        us = np.array([p.us for p in own])
        peers = np.array([p.world_size - 1 for p in own], dtype=float)
        size = np.array([p.num_bytes for p in own], dtype=float)
        traffic = np.array([traffic_of(algorithm, p.world_size) for p in own])
        # The bound itself may be noisy: never more of it than the fastest point shows.
        fixed = np.minimum(rounds_of(algorithm) * bound_us, us)
        # Without two points beyond a knee its slope would follow one point's noise.
        knees = sorted(set(size))[1:-1] or [0.0]
        fits = []
        for knee in knees:
            beyond = np.maximum(size - knee, 0)
            features = np.stack([np.ones_like(us), peers, traffic * size, traffic * beyond], axis=1)
            x, error = _least_squares(features / us[:, None], (us - fixed) / us)
            fits.append((error, knee, x))
        error, knee, x = min(fits, key=lambda one: one[0])
        rms = float(np.sqrt(error / len(own)))
        overhead, peer, slope, far = (float(value) for value in x)
        terms[algorithm] = Terms(overhead, peer, slope, far, int(knee), rms)
    return Model(bound_us, terms)
