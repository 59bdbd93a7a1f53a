"""Every planted mistake is reported, and the same program on the shipped code is not."""

from __future__ import annotations

import pytest
import sim_families
import sim_programs
from sim_programs import Case, sim

MUTANTS = sim_programs.MUTANTS + sim_families.MUTANTS

SCHEDULES = 20_000  # all are found within a few; a protocol that needs more is hard to break


@pytest.mark.parametrize("case", MUTANTS, ids=lambda case: case.name)
def test_caught(case: Case) -> None:
    report = sim.run_random(case.broken(), first_seed=1, schedules=SCHEDULES)
    assert report.bad.verdict in (sim.Verdict.wrong_data, sim.Verdict.hang), case.rule
    print(f"{case.name}: schedule {report.schedules}: {report.bad.text}")
    again = sim.run_random(case.broken(), first_seed=report.bad_seed, schedules=1)
    assert again.bad.text == report.bad.text
    assert sim.trace_of(case.broken(), report.bad_seed)[-1] == report.bad.text


@pytest.mark.parametrize("case", MUTANTS, ids=lambda case: case.name)
def test_shipped_code_is_right(case: Case) -> None:
    report = sim.run_random(case.shipped(), first_seed=1, schedules=1000)
    assert report.bad.verdict == sim.Verdict.right, f"seed {report.bad_seed}: {report.bad.text}"


def test_enough_and_all_used() -> None:
    assert len(MUTANTS) >= 24
    assert len({case.name for case in MUTANTS}) == len(MUTANTS)
    switches = {case.mutant for case in MUTANTS}
    assert switches == set(sim.mutant_names())
    planted = {name for name in sim.kernel_names() if "." in name}
    assert planted == {case.kernel for case in MUTANTS if "." in case.kernel}


@pytest.mark.parametrize(
    "name",
    [
        "one_shot_ll.one_buffer",
        "one_shot_ll+packet_in_two_words",
        "one_shot_sentinel.two_buffers",
        "one_shot_sentinel+extent_forgotten",
        "one_shot_flag+flag_before_data",
        "one_shot_flag.equal",
    ],
)
def test_the_explorer_finds_them_too(name: str) -> None:
    case = next(case for case in MUTANTS if case.name == name)
    report = sim.explore(case.broken(), max_states=200_000)
    assert report.bad.verdict in (sim.Verdict.wrong_data, sim.Verdict.hang)
    assert report.trace
