"""Runs a program of this folder under compute-sanitizer, as one rank: sanitized.py PROGRAM args...

Only the ranks are checked, not the launcher: so this stands between them.
"""

import os
import sys

command = ["compute-sanitizer", "--tool", os.environ.get("SANITIZER_TOOL", "memcheck")]
command += ["--error-exitcode", "9", "--print-limit", "20", sys.executable, *sys.argv[1:]]
os.execvp(command[0], command)
