"""SGLang's plugin. SGLang itself does not run here: its names are checked against its sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness
import pytest

ROOT = Path(__file__).parent.parent


def test_plugin() -> None:
    with harness.Ranks(2, init=False) as ranks:
        ranks.results("jobs_sglang", "plugin")


@pytest.mark.timeout(600)
def test_surface() -> None:
    """What the plugin and its stand-in rely on is in SGLang's release."""
    import os

    script = ROOT / ".ci/make-vllm-sources"
    done = subprocess.run(
        [str(script), sys.executable, "0.5.23", "sglang", "sglang/srt/"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if done.returncode != 0 and os.environ.get("LLCOLL_REQUIRE_VLLM") != "1":
        pytest.skip(done.stderr[-300:])
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1]) / "sglang/srt"
    assert (
        'GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"'
        in (folder / "plugins/__init__.py").read_text()
    )
    state = (folder / "distributed/parallel_state.py").read_text()
    make = state.index("CAClass = dispatch_custom_allreduce(")
    late = state.rindex("            dispatch_custom_allreduce,\n", 0, make)
    assert state.rindex("def __init__(", 0, make) < late  # imported when a group is made
    assert state.index("_register_group(self)") < make
    assert "self.ca_comm = CAClass(\n                    group=self.cpu_group," in state
    assert 'group_name="tp"' in state and "_groups[group.unique_name] = weakref.ref" in state
    text = (folder / "distributed/device_communicators/custom_all_reduce.py").read_text()
    for line in (
        "class CustomAllreduce:",
        "def dispatch_custom_allreduce(\n    group: ProcessGroup,\n    device: torch.device,\n):",
        "    def should_custom_ar(self, inp: torch.Tensor)",
        "    def custom_all_reduce(self, input: torch.Tensor)",
        "    def capture(self)",
        "    def close(self)",
    ):
        assert line in text, line
