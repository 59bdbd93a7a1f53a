"""Real vLLM on the CPU with llcoll in it: the plugin's entry point, its two classes, its surface.

The environments are made by .ci/make-vllm-env and .ci/make-vllm-sources, outside the clone. Where
that fails (no network, no disk) the tests are skipped, unless LLCOLL_REQUIRE_VLLM=1, as in CI.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import vllm_run
import vllm_surface

TESTS = Path(__file__).parent
ROOT = TESTS.parent
REDUCTIONS = vllm_run.REDUCTIONS_PER_STEP


def fetched(*command: str, limit: float = 1200) -> Path:
    """The folder that a script of .ci makes, or a skip."""
    done = subprocess.run(
        [str(ROOT / ".ci" / command[0]), sys.executable, *command[1:]],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    if done.returncode == 0:
        return Path(done.stdout.splitlines()[-1])
    text = f"{' '.join(command)} failed: {done.stderr.strip()[-400:]}"
    if os.environ.get("LLCOLL_REQUIRE_VLLM") == "1":
        pytest.fail(text)
    pytest.skip(text)


@pytest.fixture(scope="module")
def vllm_env(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Starts a program in vLLM's environment, with llcoll's and the stub's entry points."""
    python = fetched("make-vllm-env") / "bin" / "python"
    folder = tmp_path_factory.mktemp("vllm")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)],
        cwd=ROOT,
        env={**os.environ, "LLCOLL_CUDA": "0", "LLCOLL_SIM": "0"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    stub = folder / "vllm_stub-0.dist-info"
    stub.mkdir()
    (stub / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-stub\nVersion: 0\n")
    (stub / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nvllm_stub = vllm_stub:register\n"
    )
    path = [str(ROOT / "python"), str(TESTS), str(folder)]

    def start(*arguments: object, **env: str) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("LLCOLL_", "VLLM"))}
        environment |= {
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "TORCHDYNAMO_DISABLE": "1",
            **env,
        }
        return subprocess.Popen(
            [str(python), *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


def finish(process: subprocess.Popen[str], limit: float) -> str:
    """Its output; whatever it started dies with it."""
    try:
        output, _ = process.communicate(timeout=limit)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.communicate()
    assert process.returncode == 0, output[-6000:]
    return output


@pytest.fixture(scope="module")
def model(vllm_env: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    code = f"import pathlib, vllm_run; vllm_run.write_model(pathlib.Path({str(folder)!r}))"
    finish(vllm_env("-c", code), 120)
    return folder


def generate(vllm_env: Any, model: Path, tp: int, **env: str) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    binds = "|".join(str(cores[rank % len(cores)]) for rank in range(tp))
    output = finish(
        vllm_env(TESTS / "vllm_run.py", model, "--tp", tp, VLLM_CPU_OMP_THREADS_BIND=binds, **env),
        280,
    )
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.fixture(scope="module")
def reference(vllm_env: Any, model: Path) -> list[list[int]]:
    """What one rank generates: no reduction in it."""
    result = generate(vllm_env, model, 1)
    tokens = result["runs"]["chosen"]["tokens"]
    assert len({tuple(one) for one in tokens}) == len(vllm_run.PROMPTS)
    assert all(len(set(one)) > 4 for one in tokens), "the model says one thing whatever it reads"
    return tokens


def check_runs(result: dict[str, Any], reference: list[list[int]], op: str) -> None:
    runs = result["runs"]
    assert runs["chosen"]["tokens"] == reference
    for counts in runs["chosen"]["counts"]:
        other = {"all_reduce": "all_reduce_", "all_reduce_": "all_reduce"}[op]
        assert counts["steps"] >= vllm_run.MAX_TOKENS
        assert counts[op] == REDUCTIONS * counts["steps"] and counts[other] == 0
    # The controls: vLLM's own reduction makes no llcoll call, and without one the text is another.
    for which in ("stock", "none"):
        for counts in runs[which]["counts"]:
            assert counts["all_reduce"] == counts["all_reduce_"] == 0 < counts["steps"]
    assert runs["stock"]["tokens"] == reference
    assert runs["none"]["tokens"] != reference


# The first test pays for the environment where it is not there yet.
@pytest.mark.timeout(1500)
def test_cpu_engine(vllm_env: Any, model: Path, reference: list[list[int]]) -> None:
    result = generate(vllm_env, model, 2, LLCOLL_VLLM="1")
    for worker in result["workers"]:
        assert worker["llcoll"] and worker["communicator"] == "LlcollCpuCommunicator"
    check_runs(result, reference, "all_reduce_")


@pytest.mark.timeout(600)
def test_cuda_communicator_in_engine(
    vllm_env: Any, model: Path, reference: list[list[int]]
) -> None:
    """vLLM's CudaCommunicator, stubbed only in PyNccl, chooses llcoll's class from end to end."""
    result = generate(vllm_env, model, 2, LLCOLL_VLLM="1", LLCOLL_TEST_CUDA_CLASS="1")
    for worker in result["workers"]:
        assert worker["llcoll"] and worker["communicator"] == "CudaCommunicator"
        assert worker["custom"] == "LlcollCustomAllreduce"
    check_runs(result, reference, "all_reduce")


@pytest.mark.timeout(600)
def test_classes(vllm_env: Any, tmp_path: Path) -> None:
    """Sizes, types, captures, other groups, and the end: see vllm_classes.py."""
    env = {"LLCOLL_VLLM": "1", "LLCOLL_TEST_CUDA_CLASS": "1", "LLCOLL_VLLM_MAX_BYTES": "4096"}
    ranks = [vllm_env(TESTS / "vllm_classes.py", r, tmp_path / "store", **env) for r in (0, 1)]
    for output in [finish(process, 200) for process in ranks]:
        assert "all checks passed" in output
        assert "llcoll replaces" in output and "llcoll serves group tp:0" in output


@pytest.mark.timeout(600)
def test_refusals(vllm_env: Any) -> None:
    """Off by default; a release that was not checked is left alone, in one line of the log."""
    code = """
import os
import llcoll.vllm, vllm.version
import vllm.distributed.device_communicators.cpu_communicator as cpu
import vllm.distributed.device_communicators.custom_all_reduce as cuda
stock = cpu.CpuCommunicator, cuda.CustomAllreduce
llcoll.vllm.register()
assert (cpu.CpuCommunicator, cuda.CustomAllreduce) == stock
os.environ["LLCOLL_VLLM"] = "1"
real, vllm.version.__version__ = vllm.version.__version__, "0.99.1"
llcoll.vllm.register()
assert (cpu.CpuCommunicator, cuda.CustomAllreduce) == stock
vllm.version.__version__ = real
del cuda.CustomAllreduce.capture
llcoll.vllm.register()
assert cuda.CustomAllreduce is stock[1] and issubclass(cpu.CpuCommunicator, stock[0])
"""
    output = finish(vllm_env("-c", code), 200)
    assert "llcoll is not used: vLLM 0.99.1 was not checked" in output
    assert "llcoll does not replace" in output and "no ['capture']" in output


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("version", ["0.20.2", "0.25.1", "0.28.0", "0.33.0"])
def test_surface(version: str) -> None:
    """What the subclasses read, override and rely on is there in each release."""
    if version == "0.25.1":
        folder = next(fetched("make-vllm-env").glob("lib/python*/site-packages"))
    else:
        folder = fetched("make-vllm-sources", version)
    assert vllm_surface.problems_of(folder) == []


def test_surface_check_sees_changes(tmp_path: Path) -> None:
    folder = tmp_path / "vllm/distributed/device_communicators"
    folder.mkdir(parents=True)
    (folder / "custom_all_reduce.py").write_text(
        "class CustomAllreduce:\n"
        "    def __init__(self, device, group): ...\n"
        "    def should_custom_ar(self, inp, stream): ...\n"
        "    def custom_all_to_all(self, inp): ...\n"
    )
    (folder / "cuda_communicator.py").write_text("x = self.ca_comm.workspace\n")
    (folder / "cpu_communicator.py").write_text(
        "class CpuCommunicator:\n    def all_reduce(self, input_, stream): ...\n"
    )
    (folder.parent / "parallel_state.py").write_text("")
    text = "\n".join(vllm_surface.problems_of(tmp_path))
    for part in (
        "begins with ['device', 'group']",
        "has no capture",
        "should_custom_ar takes",
        "custom_all_to_all is new",
        "reads ca_comm.workspace",
        "no longer imports",
        'no `group_name="tp"`',
        "all_reduce takes ['input_', 'stream']",
    ):
        assert part in text


@pytest.mark.timeout(600)
def test_tp_decode(vllm_env: Any) -> None:
    """examples/tp_decode.py, with the transformers of vLLM's environment: 2 ranks, one's tokens."""
    process = vllm_env(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        ROOT / "examples/tp_decode.py",
        "--reduce",
        "llcoll",
        "torch",
        "none",
    )
    (line,) = [x for x in finish(process, 200).splitlines() if x.startswith("RESULT ")]
    result = json.loads(line.removeprefix("RESULT "))
    assert len(set(result["tokens"])) > 10
    assert result["llcoll"]["same tokens"] and result["torch"]["same tokens"]
    assert not result["none"]["same tokens"]  # a reduction that is left out shows
