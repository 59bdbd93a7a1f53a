"""Groups over real network boundaries: hosts as network namespaces, torchrun between them.

Where namespaces cannot be made these tests say why, and test_nodes.py simulates the nodes alone.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from harness import DEVICE
from hosts import ROOT, Hosts, why_not

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the GPU's part is in tests/gpu")


def read_all(hosts: Hosts, out: Path, name: str, ranks: list[int], seconds: float) -> list[Any]:
    """Each rank's file, once it is there."""
    deadline = time.monotonic() + seconds
    paths = [out / f"{rank}{name}.json" for rank in ranks]
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline:
            missing = [path.name for path in paths if not path.exists()]
            logs = "\n".join(log.read_text()[-3000:] for log in sorted(out.glob("*.log")))
            raise AssertionError(f"no {', '.join(missing)} within {seconds} s\n{logs}")
        time.sleep(0.1)
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("num_hosts", [2, 3])
def test_hosts(num_hosts: int, tmp_path: Path) -> None:
    """Topology, bits, groups inside and across the hosts, ragged nodes; then a link goes down."""
    if (reason := why_not()) is not None:
        pytest.skip(f"no network namespaces here ({reason}); nodes are simulated in test_nodes.py")
    nodes = [[2 * host, 2 * host + 1] for host in range(num_hosts)]
    everyone = [rank for node in nodes for rank in node]
    go = tmp_path / "go"
    with Hosts(num_hosts) as hosts:
        script = [str(ROOT / "tests/host_worker.py"), str(tmp_path), str(go), json.dumps(nodes)]
        for host in range(num_hosts):
            hosts.torchrun(host, 2, script, tmp_path / f"host{host}.log", {})
        for rank, found in enumerate(read_all(hosts, tmp_path, "", everyone, 100)):
            # torchrun numbers the hosts as they come, but host by host.
            assert found["nodes"] == nodes, found
            assert found["wrong"] == [], found
            node, place = divmod(rank, 2)
            assert found["groups"]["tp"] == [[[0, 1]], float(4 * node + 1)], found
            across = float(sum(2 * n + place for n in range(num_hosts)))
            assert found["groups"]["dp"] == [[[n] for n in range(num_hosts)], across], found
            if rank != everyone[-1]:
                assert found["ragged"] == [[*nodes[:-1], nodes[-1][:1]], True], found
        go.touch()
        time.sleep(1.0)
        hosts.cut(num_hosts - 1)
        failed = read_all(hosts, tmp_path, ".failed", everyone, 60)
        lost = num_hosts - 1
        for rank, got in enumerate(failed):
            assert got["error"] == "CollectiveTimeout" and got["seconds"] < 15, (rank, got)
            alone = rank in nodes[lost]
            # The store is on host 0: cut off from it, a rank can name no other.
            name = (
                "node 0 (ranks 0, 1), with the rendezvous store,"
                if alone
                else (f"node {lost} (ranks {nodes[lost][0]}, {nodes[lost][1]})")
            )
            assert f"{name} cannot be reached" in got["text"], (rank, got)
            assert got["later"] == ["CollectiveTimeout"] * 3, (rank, got)
