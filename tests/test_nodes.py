"""Groups that span nodes, on one host: LLCOLL_NODES says which ranks share one."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import reference
from harness import DEVICE, Ranks
from jobs_nodes import Nodes

import llcoll
from llcoll import topology

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the GPU's part is in tests/gpu")
JOBS = "jobs_nodes"
OWN = ("leaders", "lanes")
# Two and three nodes; ragged; a lane whose ranks fall from node to node; lone ranks.
SHAPES: dict[str, tuple[int, Nodes]] = {
    "2": (4, [[0, 1], [2, 3]]),
    "3+2": (5, [[0, 1, 2], [3, 4]]),
    "0,3/1,2": (4, [[0, 3], [1, 2]]),
    "2+1+2": (5, [[0, 1], [2], [3, 4]]),
}


def spanning(nodes: str, policy: str = "fast", chunk: int = 0, **options: Any) -> Ranks:
    env = {"LLCOLL_NODES": nodes}
    if chunk:
        env["LLCOLL_NODE_CHUNK_BYTES"] = str(chunk)
    return Ranks(SHAPES[nodes][0], env=env, init_options={"policy": policy, **options}, timeout=30)


def no_wrong(answers: list[list[str]]) -> None:
    assert all(wrong == [] for wrong in answers), answers


@pytest.mark.parametrize(("nodes", "chunk"), [("2", 0), *((nodes, 8192) for nodes in SHAPES)])
def test_bits_of_the_invariant_policy(nodes: str, chunk: int) -> None:
    """Every type and operator; with the small chunks, many of them, both levels at once."""
    with spanning(nodes, "invariant", chunk) as ranks:
        cases = [
            (dtype, op, 997, algorithm)
            for dtype in reference.TYPES
            for op in reference.OPS
            if (dtype, op) != ("bool", "avg")
            for algorithm in OWN
        ]
        cases += [
            (dtype, "sum", 60_001, a) for dtype in ("float32", "bfloat16", "int8") for a in OWN
        ]
        cases += [("float16", "avg", 20_000, "auto"), ("float64", "max", 3, "auto")]
        no_wrong(ranks.results(JOBS, "reduce_cases", SHAPES[nodes][1], cases, timeout=120))


@pytest.mark.parametrize("nodes", SHAPES)
def test_copies(nodes: str) -> None:
    with spanning(nodes, chunk=8192) as ranks:
        no_wrong(ranks.results(JOBS, "copy_cases", [1, 50, 3000], list(OWN), timeout=120))


@pytest.mark.parametrize("nodes", ["0,3/1,2", "2+1+2"])
def test_all_to_all_and_the_flat_calls(nodes: str) -> None:
    with spanning(nodes) as ranks:
        for numel in (1, 3000):
            no_wrong(ranks.results(JOBS, "exchange_cases", numel, timeout=60))


@pytest.mark.parametrize(
    ("dtype", "numel"), [("float32", 60_001), ("bfloat16", 60_001), ("bfloat16", 40)]
)
def test_every_rank_and_run_has_the_same_bits(dtype: str, numel: int) -> None:
    """Three nodes under "fast": the engine's own all-reduce for the large ones."""
    with spanning("2+1+2", chunk=65536) as ranks:
        results = ranks.results(JOBS, "same_bits", numel, dtype, 4)
        assert len({bits for rank in results for bits in rank}) == 1


@pytest.mark.parametrize("nodes", ["3+2"])
def test_every_form_of_call(nodes: str) -> None:
    with spanning(nodes) as ranks:
        no_wrong(ranks.results(JOBS, "forms", timeout=120))
        for texts in ranks.results(JOBS, "errors"):
            assert "spans nodes, so it takes leaders, lanes, torch or auto" in texts[0], texts
            assert "choose auto or torch" in texts[1], texts
            assert "spans nodes, so it takes leaders, lanes, torch or auto" in texts[2], texts
            assert "root is 99" in texts[3], texts


def test_groups_inside_and_across_nodes() -> None:
    nodes = SHAPES["2"][1]
    with Ranks(4, env={"LLCOLL_NODES": "2"}, init=False) as ranks:
        for rank, got in enumerate(ranks.results(JOBS, "subgroups", nodes)):
            node, place = divmod(rank, 2)
            assert got["tp"] == ([[0, 1]], float(sum(nodes[node]))), got
            assert got["dp"] == ([[0], [1]], float(place + place + 2)), got
            assert got["scattered"] == [float(place + place + 2)] * 300, got
            assert got["compiled"] == float(place + place + 2), got


def test_found_on_one_host() -> None:
    with Ranks(2) as ranks:
        assert ranks.results(JOBS, "nodes_of") == [[[0, 1]]] * 2


def test_the_algorithm_of_the_environment_runs_inside_the_nodes() -> None:
    env = {"LLCOLL_NODES": "2", "LLCOLL_ALGORITHM": "two_shot_ll"}
    with Ranks(4, env=env, init_options={"policy": "invariant"}) as ranks:
        cases = [("float32", "sum", 500, "auto"), ("bfloat16", "prod", 90, "lanes")]
        no_wrong(ranks.results(JOBS, "reduce_cases", SHAPES["2"][1], cases))


def test_bad_nodes_are_an_error_on_every_rank() -> None:
    with Ranks(4, init=False) as ranks:
        for given, words in (
            (3, "4 ranks do not make 3 equal nodes"),
            ([3, 2], "every rank must be in one node"),
            ("x", "not a list of numbers"),
            ([[0, 1], [1, 2, 3]], "every rank must be in one node"),
            ([4, 0], "a node without ranks"),
        ):
            texts = ranks.results(JOBS, "init_error", given)
            assert len(set(texts)) == 1 and words in texts[0], texts
        per_rank = [(2,), (2,), (2,), ([3, 1],)]
        texts = ranks.results(JOBS, "init_error", per_rank=per_rank)
        assert len(set(texts)) == 1 and "disagree on nodes" in texts[0], texts
        # And then it works.
        assert ranks.results(JOBS, "init_error", [[3, 0], [1, 2]]) == ["no error"] * 4
        assert ranks.results(JOBS, "nodes_of") == [[[0, 3], [1, 2]]] * 4


@pytest.mark.parametrize("algorithm", OWN)
def test_a_stopped_rank_is_named_on_every_node(algorithm: str) -> None:
    """Rank 3, of node 1, hangs: its node finds out who, the other node hears it from there."""
    with spanning("2", timeout=1.0) as ranks:
        ranks.start(JOBS, "until_error", 5000, algorithm, 20)
        time.sleep(0.7)
        ranks.signal(3, signal.SIGSTOP)
        outcomes = ranks.collect(30, ranks=[0, 1, 2])
        ranks.signal(3, signal.SIGCONT)
        for outcome in outcomes:
            assert outcome.kind == "value", outcome
            got = outcome.value
            assert got["error"] == "CollectiveTimeout" and got["seconds"] < 8, got
            assert "rank 3" in got["text"] and "node 1 (ranks 2, 3)" in got["text"], got
            assert got["later"] == ["CollectiveTimeout"] * 3, got


@pytest.mark.parametrize("algorithm", OWN)
def test_a_node_that_dies_is_named(algorithm: str) -> None:
    before = sorted(os.listdir("/dev/shm"))
    with spanning("2+1+2", timeout=1.5) as ranks:
        ranks.start(JOBS, "until_error", 3000, algorithm, 20)
        time.sleep(0.7)
        for rank in (3, 4):
            ranks.signal(rank, signal.SIGKILL)
        for outcome in ranks.collect(30, ranks=[0, 1, 2]):
            assert outcome.kind == "value", outcome
            got = outcome.value
            assert got["error"] == "CollectiveTimeout" and got["seconds"] < 8, got
            assert "node 2 (ranks 3, 4) cannot be reached" in got["text"], got
    assert sorted(os.listdir("/dev/shm")) == before


@pytest.mark.parametrize(
    ("text", "ranks", "nodes"),
    [
        ("2", 4, [[0, 1], [2, 3]]),
        ("3+2", 5, [[0, 1, 2], [3, 4]]),
        ("2,0/3,1", 4, [[0, 2], [1, 3]]),
        ("1", 3, [[0, 1, 2]]),
    ],
)
def test_parse(text: str, ranks: int, nodes: Nodes) -> None:
    assert topology.parse(text, ranks, "nodes") == nodes
    assert topology.parse(topology.text_of(nodes) if len(nodes) > 1 else "1", ranks, "") == nodes


@pytest.mark.parametrize("text", ["", "0", "2+", "-1", "1,2/3", "5"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(llcoll.LlcollError, match="nodes is"):
        topology.parse(text, 4, "nodes")
