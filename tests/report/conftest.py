"""Makes `report_runs` importable, whatever the import mode of the test run."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
