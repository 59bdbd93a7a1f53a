"""Several hosts: flat torch.distributed and Open MPI against llcoll over one network.

    python benchmarks/nodes.py [--hosts 2] [--ranks 2] [--delays 0,50,1000] [--out FILE]

Hosts are network namespaces (tests/hosts.py, as root): joined by veth where the delay is 0, else
by benchmarks/delay_relay.cpp, which holds each packet back for that many us one way. Prints a
table and, with --out, writes JSON with every figure. --mpirun names an mpirun whose python
(--mpi-python) has mpi4py and numpy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from hosts import Hosts, build_relay, why_not  # noqa: E402

MPI_WORKER = ROOT / "benchmarks/nodes_mpi.py"


def run_torch(hosts: Hosts, ranks: int, seconds: float, folder: Path) -> dict[str, Any]:
    out = folder / "torch.json"
    script = [str(ROOT / "benchmarks/nodes_worker.py"), str(out), str(seconds)]
    agents = [
        hosts.torchrun(h, ranks, script, folder / f"host{h}.log", {}) for h in range(hosts.count)
    ]
    for agent in agents:
        agent.wait(seconds + 120)
    if not out.exists():
        logs = "\n".join(log.read_text()[-2000:] for log in sorted(folder.glob("host*.log")))
        raise SystemExit(f"the ranks failed:\n{logs}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def run_mpi(
    hosts: Hosts, ranks: int, seconds: float, folder: Path, mpirun: str, python: str
) -> dict[str, float]:
    """Open MPI's median time by size. Its daemons start through `ip netns exec` in place of ssh,
    in a UTS namespace with a name of their own: by the host's name it would take them for one."""
    agent = folder / "agent"
    cases = "\n".join(
        f"  {hosts.address(h)}) ns={hosts.name(h)}; name=host{h} ;;" for h in range(hosts.count)
    )
    agent.write_text(
        f"#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}\nesac\n"
        'exec ip netns exec $ns unshare -u sh -c "hostname $name; $*"\n'
    )
    agent.chmod(0o755)
    out = folder / "mpi.json"
    where = ",".join(f"{hosts.address(h)}:{ranks}" for h in range(hosts.count))
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(ranks * hosts.count)]
    command += [
        "--map-by",
        f"ppr:{ranks}:node",
        "--host",
        where,
        "--mca",
        "plm_rsh_agent",
        str(agent),
    ]
    command += ["--mca", "btl_tcp_if_include", "net0", "--mca", "oob_tcp_if_include", "net0"]
    command += [
        "--mca",
        "btl",
        "self,sm,tcp",
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "mpi_yield_when_idle",
        "1",
    ]
    command += [python, str(MPI_WORKER), str(out), str(seconds)]
    child = hosts.start(
        0,
        ["unshare", "-u", "sh", "-c", 'hostname host0; exec "$@"', "sh", *command],
        folder / "mpi.log",
        {"PRTE_MCA_plm_ssh_agent": str(agent)},
    )
    try:
        child.wait(seconds + 60)
    except subprocess.TimeoutExpired:
        child.kill()
    if not out.exists():
        print(f"Open MPI failed:\n{(folder / 'mpi.log').read_text()[-1500:]}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(out.read_text())
    return found


def table(result: dict[str, Any]) -> str:
    names = ("flat", "mpi", "auto", "leaders", "lanes")
    head = f"{'bytes':>9} " + " ".join(f"{n:>9}" for n in names) + f" {'auto/flat':>9}"
    lines = [head]
    for row in result["rows"]:
        cells = []
        for name in names:
            us = result["mpi"].get(str(row["bytes"])) if name == "mpi" else row["us"].get(name)
            cells.append(f"{us:9.0f}" if us is not None else f"{'-':>9}")
        lines.append(f"{row['bytes']:>9} {' '.join(cells)} {row['auto_to_flat']:9.2f}")
    lines.append(f"geometric mean of auto/flat: {result['geometric_mean']:.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of each host")
    parser.add_argument("--delays", default="0,50,1000", help="one way, us")
    parser.add_argument("--seconds", type=float, default=40, help="for each delay")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--mpirun", default="")
    parser.add_argument("--mpi-python", default=sys.executable)
    args = parser.parse_args()
    if (reason := why_not()) is not None:
        raise SystemExit(f"no network namespaces here: {reason}")
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        relay = build_relay(folder)
        for delay in map(float, args.delays.split(",")):
            with Hosts(args.hosts, relay if delay else None, delay) as hosts:
                for old in folder.glob("*.json"):
                    old.unlink()
                result = run_torch(hosts, args.ranks, args.seconds, folder)
                result["mpi"] = (
                    run_mpi(
                        hosts, args.ranks, args.seconds / 4, folder, args.mpirun, args.mpi_python
                    )
                    if args.mpirun
                    else {}
                )
            logs = [math.log(row["auto_to_flat"]) for row in result["rows"]]
            result["geometric_mean"] = math.exp(sum(logs) / len(logs))
            result["delay_us"] = delay
            results.append(result)
            head = f"{args.hosts} hosts of {args.ranks} ranks, delay {delay:g} us one way"
            print(f"\n{head} (8 bytes by Gloo: {result['one_way_us']:.0f} us)")
            print(f"float32 all-reduce, median us:\n{table(result)}", flush=True)
    if args.out is not None:
        data = {"cores": os.cpu_count(), "kernel": os.uname().release, "results": results}
        args.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
