"""The files of a kubelet's service, read for `outrace config translate`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from monitor import documents
from monitor.documents import UnreadableError
from monitor.errors import ConfigError
from monitor.policy.unit_files import command_line
from monitor.policy.unit_words import Word, Written


def translated_words(files: Sequence[str], root: str) -> tuple[list[Word], list[str]]:
    """The words of the kubelet's command line, and notes. ``root``: where the node's files are. Raises ConfigError, and
    PolicyError for what is in them.
    """
    return command_line([_read(path) for path in files], lambda path: _environment(path, root))


def _environment(path: str, root: str) -> Written | None:
    under_root = os.path.join(root, path.lstrip("/"))
    return _read(under_root) if os.path.exists(under_root) else None


def _read(path: str) -> Written:
    try:
        return Written(path, documents.decoded(documents.read_bytes(path, pipes=True)))
    except documents.NotAFileError as error:
        raise ConfigError(f"{path}: {error}", "name a file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", "name a file of the kubelet's service") from None
    except UnreadableError as error:
        raise ConfigError(f"{path}: {error}") from None
