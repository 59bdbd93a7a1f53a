"""PEP 517 backend: setuptools' own, with the torch that is already installed made visible.

An isolated build hides the environment's torch and would download gigabytes a second time; this one
appends the environment's site-packages (so the isolated setuptools still wins) when torch is there,
and asks for torch only when it is not.
"""

import site
import sys
import sysconfig
from pathlib import Path

from setuptools.build_meta import *  # noqa: F403  (the hooks that need no change)


def _torch_requirement():
    paths = sysconfig.get_paths()
    candidates = [paths["platlib"], paths["purelib"], *site.getsitepackages()]
    for directory in [*sys.path, *candidates]:
        if directory and (Path(directory) / "torch" / "version.py").exists():
            if directory not in sys.path:
                sys.path.append(directory)
            return []
    return ["torch>=2.11", "numpy"]


_REQUIREMENT = _torch_requirement()


def get_requires_for_build_wheel(config_settings=None):
    return _REQUIREMENT


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings=None):
    return _REQUIREMENT
