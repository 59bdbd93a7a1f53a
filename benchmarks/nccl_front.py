"""Unchanged NCCL programs with NCCL alone and with the front before it (figure 14).

    python -m llcoll.loopback -n 2 benchmarks/nccl_front.py FOLDER --out OUT [--part tests]
    python benchmarks/nccl_front.py --report OUT/nccl_front_*.json --plot figure.png

FOLDER is what benchmarks/nccl_programs.sh makes: libnccl.so.2, libmpi.so, nccl-tests, cusolver_mp
and its libraries; libnccl_all.so.2, where it is there, is an NCCL with all types and operators (one
algorithm), for the checks. Every rank runs the same programs one after the other; rank 0 writes
OUT/nccl_front_PART_RANKS.json (microseconds and milliseconds, version 1) and the programs' output
beside it. Exit status 1 where a program fails, finds a wrong result or runs over its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccl_front_report import COLLECTIVES, SIDES, report

import llcoll.nccl

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast")
SMALL = ("-n", "2", "-w", "1", "-c", "1")  # few repetitions, with checking on
PARTS = ("calls", "cusolver", "tests", "taken")
CUSOLVER_ROUNDS = 3
NUMBER = re.compile(r"\d+(\.\d+)?")
SHARE = re.compile(r"llcoll: pid \d+: (\d+) of (\d+) calls by llcoll")


@dataclass
class Step:
    """One program run. `all_types`: with the NCCL that has all types and operators."""

    name: str
    side: str
    command: list[str]
    kind: str  # check, graph_us, host_us, solve, calls
    limit_s: float = 60
    all_types: bool = False
    json: Path | None = None  # what the program writes; read into the result
    settings: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)


def library_folders() -> list[str]:
    """Of torch's CUDA libraries, then the toolkit's: the programs need cuSOLVER and cuBLAS."""
    import torch

    nvidia = Path(torch.__file__).parent.parent / "nvidia"
    folders = [str(path) for path in sorted(nvidia.glob("*/lib"))]
    return [*folders, str(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64")]


def environment(folder: Path, step: Step, idx: int, num_gpus: int) -> dict[str, str]:
    env = dict(os.environ)
    name = "libnccl_all.so.2" if step.all_types else "libnccl.so.2"
    if step.side in ("front", "free pairs"):
        wanted = llcoll.nccl.parse_args(["--nccl", str(folder / name), "--", "program"])
        env = llcoll.nccl.environment_for(wanted, env)
        # The log costs an atomic addition a call: not where the host's time is taken.
        if step.kind != "host_us":
            env["LLCOLL_LOG"] = "1"
    else:
        env["LD_PRELOAD"] = str((folder / name).resolve())
    if "NCCL_FREE" in step.settings:
        env["LD_PRELOAD"] = f"{(folder / 'libnccl_free.so').resolve()}:{env['LD_PRELOAD']}"
    if step.all_types:
        env |= {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    inherited = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
    env["LD_LIBRARY_PATH"] = ":".join([str(folder.resolve()), *inherited, *library_folders()])
    local_rank = int(env["LOCAL_RANK"])
    if num_gpus < int(env["WORLD_SIZE"]):
        env |= {"NCCL_TESTS_DEVICE": str(local_rank % num_gpus), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    # A rank that never comes ends the program, not the whole run.
    env |= {"LLCOLL_MPI_JOB": str(idx), "LLCOLL_MPI_TIMEOUT": str(int(step.limit_s))}
    env.setdefault("LLCOLL_TIMEOUT", "20")
    return env | step.settings


def test_steps(folder: Path, has_all: bool) -> list[Step]:
    """The timed ones first: they are short, and the limit may cut what comes last."""
    steps: list[Step] = []
    timed = ["-b", "8", "-e", "1M", "-f", "4", "-d", "float", "-c", "0", "-a", "3"]
    programs = {name: str(folder / "nccl-tests" / f"{name}_perf") for name in COLLECTIVES}
    for collective, program in programs.items():
        for kind, more in (
            ("graph_us", ["-n", "50", "-w", "10", "-G", "20"]),
            ("host_us", ["-n", "200", "-w", "20", "-C", "1"]),
        ):
            if kind == "graph_us" or collective in ("all_reduce", "broadcast"):
                steps += [Step(collective, side, [program, *timed, *more], kind) for side in SIDES]
    for collective, program in programs.items():
        roots = ["-r", "-1"] if collective in ROOTED else []
        operators = ["-o", "all"] if collective in REDUCTIONS else []
        for side in SIDES:
            if has_all:
                command = [program, "-b", "8", "-e", "8M", "-f", "16", "-d", "all", *operators]
                step = Step(collective, side, [*command, *roots, *SMALL], "check", 90, True)
                steps.append(step)
            command = [program, "-b", "8", "-e", "4M", "-f", "8", "-d", "float", *roots, *SMALL]
            steps.append(Step(f"{collective}, graph", side, [*command, "-G", "2"], "check"))
        if collective == "all_reduce":
            command = [program, "-b", "8", "-e", "2M", "-f", "4", "-d", "float", "-u", "1", *SMALL]
            steps.append(Step(f"{collective}, unaligned", "front", command, "check"))
    program = str(folder / "nccl-tests" / "sendrecv_perf")
    steps.append(Step("sendrecv", "front", [program, "-b", "8", "-e", "1M", "-f", "8"], "check"))
    return steps


def taken_steps(folder: Path) -> list[Step]:
    """What llcoll has whole: for more ranks on a GPU than NCCL's own kernels run with."""
    steps = []
    sizes = ["-b", "8", "-e", "128K", "-f", "8"]
    for collective in COLLECTIVES:
        program = str(folder / "nccl-tests" / f"{collective}_perf")
        cases = [("float", "sum")]
        if collective in REDUCTIONS:
            cases += [("bfloat16", "sum"), ("int32", "max"), ("double", "prod")]
        for dtype, operator in cases:
            command = [program, *sizes, "-d", dtype, *SMALL]
            command += ["-o", operator] if collective in REDUCTIONS else []
            command += ["-r", "-1"] if collective in ROOTED else []
            name = f"{collective}, {dtype} {operator}"
            steps.append(Step(name, "front", command, "check", 40))
    return steps


def cusolver_steps(folder: Path, out: Path, sizes: str) -> list[Step]:
    """By turns, since the host's speed drifts: NCCL alone, the front, and two bounds.

    Results of the bounds are wrong. "free" leaves out all communication: no NCCL can be faster.
    "free pairs" leaves out Send and Recv behind the front: the most that taking them could win.
    """
    steps: list[Step] = []
    for _ in range(CUSOLVER_ROUNDS):
        for side, free in (("alone", ""), ("front", ""), ("free", "all"), ("free pairs", "pairs")):
            path = out / f"solves_{len(steps)}.json"
            command = [str(folder / "cusolver_mp"), "--sizes", sizes, "--json", str(path)]
            settings = {"NCCL_FREE": free} if free else {}
            if free:
                command.append("--unchecked")
            if free == "all":
                command += ["--routines", "syevd"]  # potrf refuses what is no factor
            step = Step("cusolver_mp", side, command, "solve", 60, json=path, settings=settings)
            steps.append(step)
    return steps


def calls_steps(folder: Path, out: Path) -> list[Step]:
    """The front a second time without what the destruction of streams makes necessary."""
    steps: list[Step] = []
    for name, side, settings in (
        ("nccl_calls", "alone", {}),
        ("nccl_calls", "front", {"LLCOLL_LOG": "0"}),
        ("nccl_calls, no ids", "front", {"LLCOLL_LOG": "0", "LLCOLL_STREAMS_MAY_END": "0"}),
    ):
        path = out / f"calls_{len(steps)}.json"
        command = [str(folder / "nccl_calls"), "--json", str(path)]
        steps.append(Step(name, side, command, "calls", 60, json=path, settings=settings))
    return steps


def rows_of(output: str) -> list[dict[str, Any]]:
    """nccl-tests' table: size, count, type, op, root; then time, algbw, busbw, #wrong, twice."""
    rows = []
    for line in output.splitlines():
        words = line.split()
        if len(words) < 13 or not all(NUMBER.fullmatch(words[i]) for i in (0, 1, 5, 9)):
            continue
        rows.append(
            {
                "bytes": int(words[0]),
                "type": words[2],
                "op": words[3],
                "us": float(words[5]),
                "in_place_us": float(words[9]),
                "wrong": words[8],
                "in_place_wrong": words[12],
            }
        )
    return rows


def run_step(step: Step, env: dict[str, str], log: Any) -> bool:
    started = time.monotonic()
    process = subprocess.Popen(
        step.command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=step.limit_s + 15)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        output += "\nrun over its limit\n"
    status = process.returncode
    log.write(f"== {step.name}, {step.side}, {step.kind}: status {status}\n{output}\n")
    log.flush()
    result: dict[str, Any] = {"status": status, "seconds": round(time.monotonic() - started, 1)}
    share = SHARE.search(output)
    if share:
        result["taken"], result["calls"] = int(share.group(1)), int(share.group(2))
    is_right = status == 0
    if step.kind in ("check", "graph_us", "host_us"):
        rows = rows_of(output)
        if step.kind == "check":
            wrong = [
                r
                for r in rows
                if any(r[k] not in ("0", "N/A") for k in ("wrong", "in_place_wrong"))
            ]
            result |= {"checked": 2 * len(rows), "wrong": len(wrong), "first_wrong": wrong[:8]}
            is_right = is_right and not wrong
        else:
            result["rows"] = [{k: r[k] for k in ("bytes", "us", "in_place_us")} for r in rows]
        # Only rank 0 prints the table.
        is_right = is_right and (bool(rows) or os.environ["RANK"] != "0")
    if step.json is not None and step.json.is_file() and os.environ["RANK"] == "0":
        result["written"] = json.loads(step.json.read_text())["results"]
        step.json.unlink()
    step.result = result
    if not is_right:
        result["end"] = output[-2000:]
        print(f"rank {os.environ['RANK']}: {step.name}, {step.side}:\n{output[-3000:]}", flush=True)
    return is_right


def say(step: Step, right: bool) -> None:
    result = step.result
    share = f", {result['taken']} of {result['calls']} calls by llcoll" if "calls" in result else ""
    word = "ok" if right else "FAILED"
    text = f"{step.name:24} {step.side:6} {step.kind:9} {word:6}"
    print(f"{text} {result['seconds']:6.1f} s{share}", flush=True)


def take_cores() -> None:
    """Each rank's programs stay on a share of the cores, so that ranks do not meet on one."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // int(os.environ["LOCAL_WORLD_SIZE"])
    first = share * int(os.environ["LOCAL_RANK"])
    if share > 1:
        os.sched_setaffinity(0, cores[first : first + share])


def run_rank(args: argparse.Namespace, part: str) -> bool:
    import torch

    folder, out = args.folder.resolve(), args.out.resolve()
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    steps = {
        "tests": lambda: test_steps(folder, (folder / "libnccl_all.so.2").is_file()),
        "cusolver": lambda: cusolver_steps(folder, out, args.sizes),
        "calls": lambda: calls_steps(folder, out),
        "taken": lambda: taken_steps(folder),
    }[part]()
    steps = [
        step for step in steps if not args.only or re.search(args.only, f"{step.name} {step.kind}")
    ]
    deadline = time.monotonic() + args.limit
    num_gpus = max(1, torch.cuda.device_count())
    failed, left_out = [], 0
    log_name = f"nccl_front_{part}_{num_ranks}{'' if rank == 0 else f'_rank{rank}'}.log"
    with open(out / log_name if rank == 0 else os.devnull, "w") as log:
        for idx, step in enumerate(steps):
            # Ranks are within moments of each other: in doubt one of them waits for its limit.
            if time.monotonic() > deadline:
                left_out = len(steps) - idx
                break
            right = run_step(step, environment(folder, step, idx, num_gpus), log)
            if not right:
                failed.append(f"{step.name}, {step.side}, {step.kind}")
            if rank == 0:
                say(step, right)
                write_results(out, part, num_ranks, steps)  # a limit outside may end this program
    if left_out and rank == 0:
        print(f"FAILED: {left_out} of {len(steps)} programs not run: over {args.limit:g} s")
    if rank == 0:
        write_results(out, part, num_ranks, steps)
    if failed:
        print(f"rank {rank}: FAILED: {'; '.join(failed)}", flush=True)
    return not failed and not left_out


def write_results(out: Path, part: str, num_ranks: int, steps: list[Step]) -> None:
    results = []
    for step in steps:
        if not step.result:
            continue
        one = {"name": step.name, "side": step.side, "kind": step.kind, **step.result}
        results.append(one)
    path = out / f"nccl_front_{part}_{num_ranks}.json"
    path.write_text(
        json.dumps({"version": 1, "ranks": num_ranks, "part": part, "results": results}, indent=1)
        + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS[:3])
    parser.add_argument("--only", help="regular expression of the programs to run")
    parser.add_argument("--sizes", default="256,512,1024,2048", help="of cusolver_mp")
    parser.add_argument("--limit", type=float, default=400, help="seconds, of one part")
    parser.add_argument(
        "--report", type=Path, nargs="+", help="results to print, in place of a run"
    )
    parser.add_argument("--plot", type=Path, help="picture of cuSOLVERMp's times")
    args = parser.parse_args()
    if args.report:
        return 0 if report(args.report, args.plot) else 1
    if args.folder is None or "RANK" not in os.environ:
        parser.error("FOLDER, under llcoll.loopback or torchrun; or --report FILES")
    args.out.mkdir(parents=True, exist_ok=True)
    take_cores()
    outcomes = [run_rank(args, part) for part in args.part]
    is_right = all(outcomes)
    if os.environ["RANK"] == "0":
        names = [
            args.out / f"nccl_front_{part}_{os.environ['WORLD_SIZE']}.json" for part in args.part
        ]
        is_right &= report(names, args.plot)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
