"""Where the larger data lies, if it is there: tests that need it are skipped without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("ROOFLINE_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data"
needs_shared = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not here")
