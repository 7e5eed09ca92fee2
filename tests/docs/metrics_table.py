"""The table of live metrics in docs/metrics.md.

python -m docs.metrics_table        writes it (`make metrics-doc`)
"""

from __future__ import annotations

import pathlib
import re

from harness.monitoring import metrics

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
_TABLE = re.compile(r"^\| metric \| kind \|.*?(?=\n\n)", re.S | re.M)


def page() -> str:
    """The page with its table as it should be."""
    return _TABLE.sub(lambda _: metrics.table(), PAGE.read_text(), count=1)


if __name__ == "__main__":
    PAGE.write_text(page())
