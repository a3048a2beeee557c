"""Images made here, as archives that podman loads: one layer with a static program, and ballast."""

import hashlib
import io
import json
import platform
import random
import subprocess
import tarfile
from pathlib import Path

#: Without arguments it sleeps. `MIB FILES`: writes so much, and so many files, and ends.
_PAUSE = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char block[1 << 20];
int main(int n, char **a) {
    char name[32];
    for (; n == 1; ) pause();
    int fd = open("/written", O_WRONLY | O_CREAT, 0600);
    for (int i = atoi(a[1]); i > 0; i--) if (write(fd, block, sizeof block) < 0) return 1;
    for (int i = atoi(a[2]); i > 0; i--) { sprintf(name, "/file%d", i); close(open(name, O_WRONLY | O_CREAT, 0600)); }
    return 0;
}
"""
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def program(directory: Path) -> Path:
    """The static program of the images. Needs a C compiler and the static C library."""
    made = directory / "pause"
    subprocess.run(["cc", "-static", "-O1", "-s", "-x", "c", "-", "-o", made], input=_PAUSE, text=True, check=True)
    return made


def archive(out: Path, name: str, pause: Path, ballast: int = 0, files: int = 0) -> Path:
    """An archive, as `docker save` makes one, of the image ``name``: `/pause`, ``ballast`` bytes that do not compress,
    ``files`` empty files.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, "pause", pause.read_bytes(), 0o755)
        # Its own bytes: two images with the same would share a layer.
        _add(tar, "ballast", random.Random(name).randbytes(ballast))
        for number in range(files):
            _add(tar, f"files/{number}", b"")
    config = {
        "architecture": _ARCHITECTURE,
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(out, "w") as tar:
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "layer.tar", layer.getvalue())
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return out


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))
