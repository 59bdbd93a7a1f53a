"""Builds llcoll's extensions.

Switches, all from the environment:
  LLCOLL_CUDA=auto|0|1   auto builds the CUDA part where nvcc and a CUDA-built torch are found
                         (no GPU is looked for)
  LLCOLL_SIM=0|1         the protocol simulator llcoll._sim, for development installs only
  LLCOLL_DEV=1           compile for the development GPU alone (in-place and editable builds do)
  TORCH_CUDA_ARCH_LIST   overrides the architectures
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    raise SystemExit(
        f"llcoll: building needs torch>=2.11 in this environment ({error}); "
        "pip install torch==2.11.0 'setuptools>=77,<82' wheel ninja numpy, then try again"
    ) from error

if cpp_extension.TorchVersion(torch.__version__) < (2, 11):
    raise SystemExit(f"llcoll: torch {torch.__version__} is too old: its stable ABI came with 2.11")

ROOT = Path(__file__).parent.resolve()
CSRC = Path("csrc")  # setuptools wants paths relative to the root
os.chdir(ROOT)
sys.path.insert(0, str(ROOT / "build_backend"))
from llcoll_libraries import TORCH, build_libraries, copy_libraries  # noqa: E402

# csrc/*.cpp go into both shared objects, each with its own registry, except for these.
CPU_ONLY = [
    "ops.cpp",
    "ops_collectives_cpu.cpp",
    "ops_fused_cpu.cpp",
    "python.cpp",
    "python_front.cpp",
    "python_probe.cpp",
]
CUDA_ONLY = ["ops_cuda*.cpp", "python_cuda*.cpp"]
KERNELS = "cpu/kernels*.cpp"
# Host code that the CUDA backend uses too: the bootstrap, and what debug mode compares calls with.
SHARED_CPU = [
    f"cpu/{name}.cpp"
    for name in (
        "rendezvous",
        "shm",
        "socket",
        "exchange",
        "announcement",
        "cpu_wait",
        "cross_check",
    )
]

CUDA_LIBRARY = "llcoll.lib.libllcoll_cuda"

DEV_ARCHS = "9.0"
WHEEL_ARCHS = "8.0;9.0;10.0+PTX"

STABLE_ABI = ["-DTORCH_TARGET_VERSION=0x020b000000000000"]
# Without -ffp-contract=off (and --fmad=false) a sum would round differently per instruction set.
CXX_FLAGS = [
    "-std=c++20",
    "-O3",
    "-g0",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-ffp-contract=off",
    f"-ffile-prefix-map={ROOT}=.",
]
NVCC_FLAGS = [
    "-std=c++20",
    "-O3",
    "--fmad=false",
    "--compress-mode=size",  # three architectures fit in 40 MiB; drivers before 12.4 cannot read it
    "-Xcompiler",
    "-fvisibility=hidden,-fvisibility-inlines-hidden,-ffp-contract=off",
]
LINK_FLAGS = ["-Wl,-s"]

# The CPU kernels are compiled once for each row. The order is load-bearing: the linker keeps the
# FIRST copy of an inline function, so the wider instruction sets come last, or baseline code would
# call, say, a std::vector built with AVX-512.
AVX2 = ["-mavx2", "-mf16c"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"]
if platform.machine().lower() in ("x86_64", "amd64"):
    ISAS = {"sse2": [], "avx2": AVX2, "avx512": AVX2 + AVX512}
else:
    ISAS = {"plain": []}


def say(text):
    print(f"llcoll: {text}", file=sys.stderr, flush=True)


def switch(name, default, choices):
    value = os.environ.get(name, default)
    if value not in choices:
        raise SystemExit(f"llcoll: {name}={value!r}; it must be one of {', '.join(choices)}")
    return value


def glob(*patterns):
    return sorted({str(path) for pattern in patterns for path in CSRC.glob(pattern)})


def why_no_cuda():
    """None where the CUDA part can be built, else the reason in words."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA"
    nvcc = Path(cpp_extension.CUDA_HOME or "/nonexistent") / "bin" / "nvcc"
    if not nvcc.exists():
        return "no nvcc (looked at CUDA_HOME, PATH and /usr/local/cuda)"
    command = [nvcc, "--version"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    version = re.search(r"release (\d+)\.(\d+)", text)
    if version is None or version[1] != torch.version.cuda.split(".")[0]:
        release = version[0] if version else "an unknown release"
        return f"nvcc is {release}, torch was built with CUDA {torch.version.cuda}"
    if not glob("cuda/*.cu"):
        return "csrc/cuda holds no .cu file"
    return None


def choose_cuda():
    wanted = switch("LLCOLL_CUDA", "auto", ("auto", "0", "1"))
    reason = "LLCOLL_CUDA=0" if wanted == "0" else why_no_cuda()
    if wanted == "1" and reason:
        raise SystemExit(f"llcoll: LLCOLL_CUDA=1, but {reason}")
    found = f"nvcc in {cpp_extension.CUDA_HOME}, torch {torch.__version__}"
    say(f"CUDA off: {reason}" if reason else f"CUDA on: {found}")
    return reason is None


def choose_sim():
    wanted = switch("LLCOLL_SIM", "0", ("0", "1")) == "1"
    if wanted and not glob("sim/*.cpp"):
        raise SystemExit("llcoll: LLCOLL_SIM=1, but csrc/sim holds no .cpp file")
    say(f"simulator {'on' if wanted else 'off'}: LLCOLL_SIM={int(wanted)}")
    return wanted


def cuda_extensions(includes, common):
    """First the library that knows no torch, with the core and the kernels, then the ops over it.

    All of the library is visible to the ops; it has its own CUDA runtime, so that programs without
    torch need none.
    """
    core = [p for p in glob("*.cpp", *SHARED_CPU) if not Path(p).name.startswith(TORCH)]
    ops = [p for p in glob("*.cpp") if Path(p).name.startswith(TORCH) and p not in glob(*CPU_ONLY)]
    visible = ["-fvisibility=default", "-fno-semantic-interposition"]
    made = []
    for name, sources, cxx, nvcc, libraries, links in (
        (
            CUDA_LIBRARY,
            glob("cuda/*.cu", "cuda/*.cpp") + core,
            [*CXX_FLAGS, *visible],
            [*NVCC_FLAGS, "-Xcompiler", "-fvisibility=default"],
            ["cudart_static", "rt", "dl", "pthread"],
            ["-Wl,-soname,libllcoll_cuda.so", "-Wl,-Bsymbolic-functions", "-Wl,--exclude-libs,ALL"],
        ),
        (
            "llcoll._cuda",
            ops,
            CXX_FLAGS + STABLE_ABI,
            NVCC_FLAGS,
            ["torch_cpu", "torch_cuda", "cudart", "llcoll_cuda"],
            ["-Wl,-rpath,$ORIGIN/lib"],
        ),
    ):
        extension = cpp_extension.CUDAExtension(
            name,
            sources,
            include_dirs=list(includes),
            py_limited_api=True,
            extra_compile_args={"cxx": [*cxx, "-DUSE_CUDA"], "nvcc": [*nvcc, "-DUSE_CUDA"]},
            **{**common, "extra_link_args": LINK_FLAGS + links},
        )
        extension.libraries = libraries
        made.append(extension)
    return made


def make_extensions():
    headers = glob("**/*.h", "**/*.cuh")
    includes = [str(ROOT / CSRC / "include"), str(ROOT / CSRC)]
    common = {"depends": headers, "extra_link_args": LINK_FLAGS}
    cuda_only = glob(*CUDA_ONLY)
    elsewhere = {*cuda_only, *glob(KERNELS)}
    sources = [path for path in glob("*.cpp", "cpu/*.cpp") if path not in elsewhere]
    extensions = [
        cpp_extension.CppExtension(
            "llcoll._C",
            sources,
            include_dirs=list(includes),
            py_limited_api=True,
            extra_compile_args=CXX_FLAGS + STABLE_ABI,
            **common,
        )
    ]
    # The stable ABI lives in it; torch's default list would also tie the wheel to libc10.
    extensions[0].libraries = ["torch_cpu"]
    if choose_cuda():
        extensions += cuda_extensions(includes, common)
    if choose_sim():
        extensions.append(
            Extension(
                "llcoll._sim",
                glob("sim/*.cpp", "exchange_plan.cpp", "check.cpp"),
                include_dirs=includes + cpp_extension.include_paths(),  # torch carries pybind11
                extra_compile_args=CXX_FLAGS,
                language="c++",
                **common,
            )
        )
    return extensions


class BuildExtensions(cpp_extension.BuildExtension):
    """torch's build, with per-file flags for the CPU kernels, an object folder each, and ccache."""

    def finalize_options(self):
        super().finalize_options()
        # Read here: setuptools clears `inplace` while it builds.
        in_place = self.inplace or getattr(self, "editable_mode", False)
        self.dev = bool(in_place) or os.environ.get("LLCOLL_DEV") == "1"
        if self.dev:
            # A wheel's objects, for other architectures, stay as they are.
            self.build_temp += "-dev"

    def build_extensions(self):
        archs = DEV_ARCHS if self.dev else WHEEL_ARCHS
        archs = os.environ.setdefault("TORCH_CUDA_ARCH_LIST", archs)
        os.environ.setdefault("MAX_JOBS", str(len(os.sched_getaffinity(0))))
        self.use_ccache()
        if any(ext.name == CUDA_LIBRARY for ext in self.extensions):
            say(f"CUDA architectures: {archs}")
        say(f"CPU instruction sets: {', '.join(ISAS)}")
        super().build_extensions()

    def use_ccache(self):
        ccache = shutil.which("ccache")
        if os.environ.get("LLCOLL_CCACHE", "1") == "0" or ccache is None:
            say("ccache not used: a clean build compiles everything")
            return
        # Paths below the clone are hashed relative to it: clones share what they compile.
        os.environ.setdefault("CCACHE_BASEDIR", str(ROOT))
        os.environ.setdefault("CCACHE_NOHASHDIR", "1")
        # A link named as the compiler: torch takes "ccache c++" for an unknown compiler and warns.
        compiler = os.environ.get("CXX", "c++")
        if "ccache" not in compiler and not set(compiler) & set("/ "):
            link = Path(self.build_temp).resolve() / "ccache" / compiler
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(ccache)
            os.environ["CXX"] = str(link)
        if cpp_extension.CUDA_HOME:
            nvcc = f"{cpp_extension.CUDA_HOME}/bin/nvcc"
            os.environ.setdefault("PYTORCH_NVCC", f"{ccache} {nvcc}")
        # Fresh clones share what was compiled in another folder.
        os.environ.setdefault("CCACHE_BASEDIR", str(ROOT))
        os.environ.setdefault("CCACHE_NOHASHDIR", "1")
        say(f"ccache at {ccache}")

    def build_extension(self, ext):
        # Shared sources are compiled with other macros in each extension: objects must not collide.
        base = Path(self.build_temp)
        self.build_temp = str(base / ext.name.rpartition(".")[2])
        try:
            kernels = []
            if ext.name == "llcoll._C" and glob(KERNELS):
                kernels = self.compile_kernels(ext)
                ext.extra_objects = [*ext.extra_objects, *kernels]
            if ext.name == "llcoll._cuda":
                library = Path(self.get_ext_fullpath(CUDA_LIBRARY))
                ext.library_dirs.append(str(library.parent))
                ext.depends = [*ext.depends, str(library)]
            super().build_extension(ext)
            if ext.name == "llcoll._C":
                build_libraries(self, KERNELS, kernels, CXX_FLAGS)
        finally:
            self.build_temp = str(base)

    def get_ext_filename(self, fullname):
        # A plain library, not a module: its name holds no ABI.
        if fullname == CUDA_LIBRARY or fullname == CUDA_LIBRARY.rpartition(".")[2]:
            return f"{fullname.replace('.', os.sep)}.so"
        return super().get_ext_filename(fullname)

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        copy_libraries(Path(self.build_lib) / "llcoll", ROOT / "python" / "llcoll")

    def compile_kernels(self, ext):
        def compile_one(isa):
            return self.compiler.compile(
                glob(KERNELS),
                output_dir=str(Path(self.build_temp) / f"isa_{isa}"),
                include_dirs=list(ext.include_dirs),
                extra_postargs=[*ext.extra_compile_args, f"-DLLC_ISA={isa}", *ISAS[isa]],
                depends=ext.depends,
            )

        jobs = max(1, min(len(ISAS), int(os.environ["MAX_JOBS"])))
        with ThreadPoolExecutor(jobs) as pool:
            return [obj for objects in pool.map(compile_one, ISAS) for obj in objects]


class BuildPython(build_py):
    """Puts the public headers into the wheel; a development install reads them from csrc."""

    def header_pairs(self):
        if getattr(self, "editable_mode", False):
            return []
        target = Path(self.build_lib) / "llcoll" / "include" / "llcoll"
        folder = CSRC / "include" / "llcoll"
        return [
            (path, target / path.name)
            for path in sorted(folder.iterdir())
            if path.suffix in (".h", ".cuh")
        ]

    def run(self):
        super().run()
        for source, target in self.header_pairs():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def get_outputs(self, include_bytecode=1):
        return super().get_outputs(include_bytecode) + [
            str(target) for _, target in self.header_pairs()
        ]


class BuildWheel(bdist_wheel):
    def run(self):
        if os.environ.get("LLCOLL_SIM") == "1":
            raise SystemExit(
                "llcoll: LLCOLL_SIM=1 is for development installs (pip install -e ., build_ext "
                "--inplace): llcoll._sim is bound to one Python version and must not travel under "
                "the wheel's abi3 tag. Unset LLCOLL_SIM."
            )
        # What an older build left there would be packed too.
        if not self.skip_build:
            shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()


setup(
    ext_modules=make_extensions(),
    cmdclass={"build_ext": BuildExtensions, "build_py": BuildPython, "bdist_wheel": BuildWheel},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
