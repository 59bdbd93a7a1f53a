"""Runs one part of tests/gpu/broke.py on a rank of a test."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from jobs import State

sys.path.insert(0, str(Path(__file__).parent / "gpu"))
import broke
from common import World


def run_part(state: State, name: str) -> str:
    if "world" not in state:
        args = argparse.Namespace(wait=20, parts=[])
        state["world"] = World(args, state["rank"], state["world_size"], torch.device("cpu"))
    note = getattr(broke, name)(state["world"])
    assert note != broke.GPU_ONLY
    return str(note)
