"""What llcoll's vLLM classes need of a vLLM release, read from its sources: nothing is imported.

    vllm_surface.py VERSION FOLDER    FOLDER holds that release's vllm/distributed/**.py

Prints what is missing and ends with status 1 if anything is. tests/test_vllm.py fetches the
releases; this file alone checks a new one.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

# Public methods of CustomAllreduce that llcoll's subclass overrides, with the arguments it takes.
OVERRIDDEN = {
    "should_custom_ar": ["inp"],
    "custom_all_reduce": ["input"],
    "all_reduce": ["inp", "out", "registered"],
    "capture": [],
    "register_graph_buffers": [],
    "close": [],
    "should_custom_all_gather": ["inp"],
    "custom_all_gather": ["inp"],
    "should_custom_reduce_scatter": ["inp"],
    "custom_reduce_scatter": ["inp"],
    "should_mnnvl_multimem_reduce_scatter": ["inp"],
}
NEEDED = {"should_custom_ar", "custom_all_reduce", "all_reduce", "capture", "close"}
# Methods that only the overridden ones, or the stock constructor, call.
INTERNAL = {"create_shared_buffer", "free_shared_buffer"}
# What the subclass sets on itself where llcoll serves the group.
ATTRIBUTES = {"disabled", "max_size", "rank", "world_size", "group", "device", "fully_connected"}


def class_of(path: Path, name: str) -> ast.ClassDef | None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    return None


def methods_of(node: ast.ClassDef) -> dict[str, list[str]]:
    found = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            arguments = [a.arg for a in (*item.args.args, *item.args.kwonlyargs)]
            found[item.name] = [a for a in arguments if a != "self"]
    return found


def custom_problems(folder: Path) -> list[str]:
    path = folder / "vllm/distributed/device_communicators/custom_all_reduce.py"
    node = class_of(path, "CustomAllreduce")
    if node is None:
        return ["custom_all_reduce.py has no class CustomAllreduce"]
    problems = []
    methods = methods_of(node)
    init = methods.pop("__init__", [])
    if init[:2] != ["group", "device"]:
        problems.append(f"CustomAllreduce.__init__ begins with {init[:2]}")
    for name in sorted(NEEDED - methods.keys()):
        problems.append(f"CustomAllreduce has no {name}")
    for name, arguments in methods.items():
        if name in OVERRIDDEN:
            if arguments != OVERRIDDEN[name]:
                problems.append(f"CustomAllreduce.{name} takes {arguments}")
        elif not name.startswith("_") and name not in INTERNAL:
            problems.append(f"CustomAllreduce.{name} is new: its stock body would run")
    for file in sorted((folder / "vllm/distributed").rglob("*.py")):
        text = file.read_text()
        if file == path or "aiter" in file.name or "ca_comm" not in text:
            continue
        for read in ast.walk(ast.parse(text)):
            if not isinstance(read, ast.Attribute):
                continue
            owner = read.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name == "ca_comm" and read.attr not in ATTRIBUTES | OVERRIDDEN.keys():
                problems.append(f"{file.name}:{read.lineno} reads ca_comm.{read.attr}")
    return problems


def cuda_problems(folder: Path) -> list[str]:
    """The class is imported when the communicator is made, and its answer is used as we think."""
    folder = folder / "vllm/distributed"
    text = (folder / "device_communicators/cuda_communicator.py").read_text()
    problems = []
    node = class_of(folder / "device_communicators/cuda_communicator.py", "CudaCommunicator")
    late = [
        item
        for item in ast.walk(node or ast.Module([], []))
        if isinstance(item, ast.ImportFrom)
        and (item.module or "").endswith("custom_all_reduce")
        and any(alias.name == "CustomAllreduce" for alias in item.names)
    ]
    if not late:
        problems.append("CudaCommunicator no longer imports CustomAllreduce when it is made")
    if "group=self.cpu_group" not in text.replace(" ", ""):
        problems.append("CustomAllreduce is no longer given the cpu_group")
    state = (folder / "parallel_state.py").read_text()
    for wanted in ("_groups[group.unique_name] = weakref.ref(group)", 'group_name="tp"'):
        if wanted not in state:
            problems.append(f"parallel_state.py has no `{wanted}`")
    register, make = state.find("_register_group(self)"), state.find("device_comm_cls(")
    if not 0 <= register < make:
        problems.append("a group is no longer registered before its communicator is made")
    return problems


def cpu_problems(folder: Path) -> list[str]:
    path = folder / "vllm/distributed/device_communicators/cpu_communicator.py"
    node = class_of(path, "CpuCommunicator")
    if node is None:
        return ["cpu_communicator.py has no class CpuCommunicator"]
    problems = []
    if methods_of(node).get("all_reduce") != ["input_"]:
        problems.append(f"CpuCommunicator.all_reduce takes {methods_of(node).get('all_reduce')}")
    return problems


def problems_of(folder: Path) -> list[str]:
    return custom_problems(folder) + cuda_problems(folder) + cpu_problems(folder)


if __name__ == "__main__":
    found = problems_of(Path(sys.argv[2]))
    print("\n".join(found) or f"vLLM {sys.argv[1]}: as llcoll.vllm expects")
    sys.exit(bool(found))
