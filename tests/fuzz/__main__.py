"""Damaged inputs of every kind: `python -m fuzz [CASES [SEED]]` (with `PYTHONPATH=tests`; `make fuzz-inputs`).

CASES is the number of event logs; of YAML files, where that module is there, a tenth.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

LOGS = 100_000


def main() -> int:
    cases, seed = (*map(int, sys.argv[1:3]), *(LOGS, 1)[len(sys.argv) - 1 :])[:2]
    wanted = {"logs": cases, "yaml_files": max(1, cases // 10)}
    codes = [
        subprocess.run([sys.executable, "-m", f"fuzz.{name}", str(count), str(seed)], check=False).returncode
        for name, count in wanted.items()
        if importlib.util.find_spec(f"fuzz.{name}")
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
