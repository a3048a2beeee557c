"""scripts/vm is no package: it runs before anything is installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/vm"))
