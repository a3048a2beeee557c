"""The pictures of `outrace incidents show ID --html` in the documents, taken by Debian's chromium (`make pictures`).

    .venv/bin/python scripts/screenshots.py        docs/pictures/incident-won.png and others

Without chromium it says so and changes nothing: the pictures that are there stay as they are.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from monitor.cli.incident_page import page

ROOT = Path(__file__).resolve().parents[1]
#: A race on a real kernel and a pod at its own limit: what `outrace replay` makes of a recording that is kept.
REPLAYED = ROOT / "tests/data/replay/linux-6.18-cgroup-v1.json"
#: Races that scripts/picture.py recorded.
RECORDED = ROOT / "docs/pictures/race.json"
#: Picture -> how much of the page is shown, in pixels.
PICTURES = {
    ROOT / "docs/pictures/incident-won.png": 1010,
    ROOT / "docs/pictures/incident-own-limit.png": 910,
    ROOT / "docs/pictures/incident-lost.png": 1130,
}
WIDTH = 952
#: A start takes 0.5 s, on a busy machine several.
TIMEOUT_S = 60
BROWSERS = ("chromium", "chromium-browser")
MISSING = "chromium is not installed (apt-get install chromium)"


def browser() -> str | None:
    """The program, or None where it is not installed."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def chromium(program: str, html: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Open a page without a window and without a network. Raises CalledProcessError, TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="outrace-browser-") as profile:
        command = [program, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--force-device-scale-factor=1"]
        command.append("--disable-dev-shm-usage")  # 64 MiB in a container: too few for a page
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # it refuses to run as root with one
        command += [*options, html.as_uri()]
        return subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)


def take(program: str, incident: dict[str, Any], picture: Path, height: int) -> None:
    """The upper part of an incident's page as a PNG."""
    with tempfile.TemporaryDirectory(prefix="outrace-page-") as directory:
        html = Path(directory) / "page.html"
        html.write_text(page(incident))
        chromium(program, html, f"--window-size={WIDTH},{height}", f"--screenshot={picture}")


def main() -> int:
    program = browser()
    if program is None:
        print(f"no screenshots taken: {MISSING}")
        return 0
    won, own_limit, *_ = json.loads(REPLAYED.read_text())["incidents"]
    lost = json.loads(RECORDED.read_text())["lost"]["incident"]
    for incident, (picture, height) in zip((won, own_limit, lost), PICTURES.items(), strict=True):
        take(program, incident, picture, height)
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
