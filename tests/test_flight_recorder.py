"""The flight recorder, what `python -m llcoll.diagnose` makes of it, and llcoll.abort."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from harness import Ranks

from llcoll import diagnose

JOBS = "jobs_flight"
FIELDS = {"sequence", "collective", "op", "dtype", "numel", "bytes", "uneven", "root"}
FIELDS |= {"algorithm", "epoch", "launch", "state"}


def test_the_last_256_calls_are_kept() -> None:
    with Ranks(2) as ranks:
        first, second = ranks.results(JOBS, "make_calls", 300)
    assert first["calls"] == second["calls"]
    assert first["version"] == 1 and first["world_size"] == 2
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["num_calls"] == 300
    assert [call["sequence"] for call in first["calls"]] == list(range(45, 301))
    assert all(set(call) == FIELDS and call["state"] == "done" for call in first["calls"])
    kinds = [call for call in first["calls"] if 295 <= call["sequence"] <= 300]
    assert [call["collective"] for call in kinds] == [
        "all_reduce",
        "all_reduce",
        "all_reduce",
        "broadcast",
        "barrier",
        "all_reduce",
    ]
    plain, half, plan, broadcast, _, by_torch = kinds
    assert (plain["numel"], plain["bytes"], plain["dtype"], plain["op"]) == (
        12,
        48,
        "float32",
        "sum",
    )
    assert (half["bytes"], half["dtype"], half["op"]) == (80, "bfloat16", "max")
    assert half["algorithm"] == "one_shot_ll" and plan["numel"] == 5
    assert broadcast["root"] == 1 and plain["root"] is None
    assert by_torch["algorithm"] == "torch" and by_torch["epoch"] is None
    # One epoch per call of a protocol here: a call's epoch is how many came before it.
    epochs = [c["epoch"] for c in first["calls"] if c["algorithm"] == "one_shot_ll"]
    assert epochs == sorted(epochs) and len(set(epochs)) == len(epochs)


def test_uneven_calls_agree_although_each_rank_gives_its_own() -> None:
    with Ranks(3) as ranks:
        records = ranks.results(JOBS, "uneven_calls")
    assert [call["uneven"] for record in records for call in record["calls"]] == [True] * 6
    assert [record["calls"][0]["numel"] for record in records] == [3, 3, 3]
    for record in records:
        assert record["calls"][1]["numel"] == 6


def test_a_record_is_whole_while_calls_go_on() -> None:
    with Ranks(2) as ranks:
        assert ranks.results(JOBS, "dump_under_fire", 1.5) == [True] * 2


def test_a_dump_in_the_middle_of_a_wait_says_whom_it_is_for() -> None:
    with Ranks(2) as ranks:
        _, record = ranks.results(JOBS, "dump_while_waiting")
    assert record["awaited"] == 0
    (call,) = record["calls"]
    assert (call["numel"], call["state"]) == (77, "running")


def test_a_timeout_leaves_a_record_and_diagnose_names_who_never_came(tmp_path: Path) -> None:
    options = {"timeout": 0.6}
    with Ranks(3, init_options=options, env={"LLCOLL_DUMP_DIR": str(tmp_path)}) as ranks:
        ranks.results(JOBS, "some_calls", [10, 20, 30])
        reports = ranks.results(JOBS, "some_calls", [40, 50], ranks=[0, 2])
        assert all(report["error"][0] == "CollectiveTimeout" for report in reports)
        # Once each: later errors of the same communicator write no more.
        ranks.results(JOBS, "some_calls", [60], ranks=[0, 2])
        files = sorted(tmp_path.iterdir())
        assert len(files) == 2
        for file in files:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            record = json.loads(file.read_text())
            assert record["version"] == 1 and record["reason"].startswith("CollectiveTimeout: ")
            assert "rank 1 did not arrive" in record["reason"]
            assert [call["state"] for call in record["calls"]] == ["done"] * 3 + ["failed"]
        # Without a record of rank 1 this much is known.
        (finding,) = diagnose.diagnose(map(diagnose.read, files))
        assert (finding.call, finding.absent, finding.no_dump) == (4, [1], [1])
        # And with one, that it was alive and well.
        ranks.results(JOBS, "dump_to", str(tmp_path), ranks=[1])
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    (finding,) = diagnose.diagnose(map(diagnose.read, files))
    assert (finding.call, finding.absent, finding.no_dump) == (4, [1], [])
    assert any("never came" in line for line in finding.lines), finding.lines
    assert any("its last call is 3" in line for line in finding.lines), finding.lines


@pytest.mark.parametrize("directory", ["none", "/nonexistent/folder"])
def test_where_no_record_can_be_written_the_error_comes_out(directory: str) -> None:
    options = {"timeout": 0.4}
    with Ranks(2, init_options=options, env={"LLCOLL_DUMP_DIR": directory}) as ranks:
        (report,) = ranks.results(JOBS, "some_calls", [10], ranks=[0])
        assert report["error"][0] == "CollectiveTimeout"
        assert ("cannot write" in ranks.log(0)) == (directory != "none")


def test_diagnose_names_the_rank_that_made_another_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without debug mode: the sizes differ, so somebody waits for what never comes."""
    options = {"timeout": 0.8}
    with Ranks(3, init_options=options, env={"LLCOLL_DUMP_DIR": "none"}) as ranks:
        ranks.results(JOBS, "some_calls", [10, 20])
        sizes: list[tuple[Any, ...]] = [([50_000, 7],), ([100, 7],), ([50_000, 7],)]
        ranks.run(JOBS, "some_calls", per_rank=sizes, algorithm="one_shot_ll")
        ranks.results(JOBS, "dump_to", str(tmp_path))
    assert diagnose.main([str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "call 3 is the first where the ranks differ" in output
    assert "ranks 0, 2: all_reduce of 50000 float32" in output
    assert "rank 1: all_reduce of 100 float32" in output
    (finding,) = diagnose.diagnose(map(diagnose.read, tmp_path.iterdir()))
    assert (finding.call, finding.differing) == (3, [1])


def test_a_mismatch_of_debug_mode_leaves_records_too(tmp_path: Path) -> None:
    with Ranks(3, env={"LLCOLL_DEBUG": "1", "LLCOLL_DUMP_DIR": str(tmp_path)}) as ranks:
        per_rank: list[tuple[Any, ...]] = [([10, 11],), ([10, 12],), ([10, 11],)]
        for report in ranks.results(JOBS, "some_calls", per_rank=per_rank):
            assert report["error"][0] == "CollectiveMismatch", report
    (finding,) = diagnose.diagnose(map(diagnose.read, tmp_path.iterdir()))
    assert (finding.call, finding.differing, finding.no_dump) == (2, [1], [])


def a_call(sequence: int, **other: Any) -> dict[str, Any]:
    call = {"sequence": sequence, "collective": "all_reduce", "op": "sum", "dtype": "float32"}
    call |= {"numel": 10, "bytes": 40, "uneven": False, "root": None, "algorithm": "one_shot_ll"}
    return call | {"epoch": sequence, "launch": None, "state": "done"} | other


def write(path: Path, rank: int, calls: list[dict[str, Any]], **other: Any) -> Path:
    record = {"version": 1, "group": "g", "rank": rank, "world_size": 2, "device": "cpu"}
    record |= {"host": "h", "pid": 1, "time": 1.5, "timeout_s": 1, "awaited": None, "reason": ""}
    record |= {"num_calls": max((c["sequence"] for c in calls), default=0), "calls": calls}
    path.write_text(json.dumps(record | other))
    return path


def test_ranks_that_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = [a_call(n) for n in range(1, 9)]
    files = [write(tmp_path / f"{r}", r, calls) for r in range(2)]
    assert diagnose.main([str(f) for f in files]) == 0
    assert "agree in calls 1 to 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    "what", ["op", "dtype", "algorithm", "collective", "root", "numel", "epoch"]
)
def test_every_field_counts(tmp_path: Path, what: str) -> None:
    odd = a_call(2, **{what: 999 if what in ("root", "numel", "epoch") else "other"})
    write(tmp_path / "llcoll-0.json", 0, [a_call(1), a_call(2), a_call(3)])
    write(tmp_path / "llcoll-1.json", 1, [a_call(1), odd, a_call(3)])
    (finding,) = diagnose.diagnose(map(diagnose.read, diagnose.expand([str(tmp_path)])))
    assert finding.call == 2


def test_groups_are_told_apart_and_the_later_record_counts(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a0", 0, [a_call(1)]),
        write(tmp_path / "a1", 1, [a_call(1, op="max")], time=1.0),
        write(tmp_path / "a1b", 1, [a_call(1)], time=2.0),
        write(tmp_path / "b0", 0, [a_call(1)], group="h"),
        write(tmp_path / "b1", 1, [a_call(1, dtype="int8")], group="h"),
    ]
    first, second = diagnose.diagnose(map(diagnose.read, files))
    assert (first.group, first.call) == ("g", None)
    assert (second.group, second.call) == ("h", 1)


def test_records_without_a_common_call(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "0", 0, [a_call(n) for n in range(300, 556)]),
        write(tmp_path / "1", 1, [a_call(n) for n in range(1, 200)]),
    ]
    (finding,) = diagnose.diagnose(map(diagnose.read, files))
    assert finding.absent == [1] or "no call in common" in "".join(finding.lines)
    assert finding.is_fault


BAD = {
    "no json": "{",
    "other json": "[1, 2]",
    "no record": json.dumps({"version": 1}),
    "version": json.dumps({"version": 2, "calls": [], "world_size": 2}),
    "rank": json.dumps({"version": 1, "calls": [], "world_size": 2, "rank": 2}),
    "call": json.dumps({"version": 1, "calls": [{}], "world_size": 2, "rank": 1}),
}


@pytest.mark.parametrize("what", BAD)
def test_files_that_are_no_records(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(BAD[what])
    assert diagnose.main([str(file), str(tmp_path / "absent.json")]) == 2
    errors = capsys.readouterr().err
    assert "bad.json" in errors and "absent.json" in errors


def test_abort_ends_the_waits_of_every_rank() -> None:
    """One rank waits for another that aborts instead of coming; a third is at work elsewhere."""
    with Ranks(3, init_options={"timeout": 30}) as ranks:
        reports = ranks.results(JOBS, "abort_waiting", [0, 1], 2, 0.5)
        for report in reports[:2]:
            assert report["error"][0] == "CollectiveAborted", report
            assert "rank 2" in report["text"] and report["seconds"] < 1.5, report
        for rank, answers in enumerate(ranks.results(JOBS, "after_abort")):
            for how, report in answers.items():
                assert "RuntimeError" in report["error"], (rank, how, report)
                assert "rank 2 ended" in report["text"], (rank, how, report)
                assert report["seconds"] < 0.3, (rank, how, report)
                if how != "op":
                    assert report["error"][0] == "CollectiveAborted", (rank, how, report)
        assert ranks.results(JOBS, "renew") == [True] * 3


def test_abort_by_another_thread_of_a_rank_that_waits() -> None:
    with Ranks(2, init_options={"timeout": 0}) as ranks:
        report, other = ranks.results(JOBS, "abort_waiting", [0], 0, 0.4)
        assert other == {}
        assert report["error"][0] == "CollectiveAborted", report
        assert 0.3 < report["seconds"] < 1.5, report
        (answers,) = ranks.results(JOBS, "after_abort", ranks=[1])
        assert answers["check"]["error"][0] == "CollectiveAborted"
        assert ranks.results(JOBS, "renew") == [True] * 2
