"""Damaged inputs of every kind: `python -m damaged_inputs [LOGS [SEED]]` (with `PYTHONPATH=tests:tools`; `make damaged-inputs`).

LOGS is the number of event logs; of YAML files it takes a tenth as many.
"""

import argparse
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="damaged_inputs", description=__doc__)
    parser.add_argument("logs", type=int, nargs="?", default=100_000)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    given = parser.parse_args()
    wanted = {"logs": given.logs, "yaml_files": max(1, given.logs // 10)}
    codes = [
        subprocess.run(
            [sys.executable, "-m", f"damaged_inputs.{name}", str(count), str(given.seed)], check=False
        ).returncode
        for name, count in wanted.items()
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
