"""A log whose lines can be looked at."""

from typing import Any

from monitor.side.export.log import Log


class LogLines(Log):
    """Keeps level, message and fields of each line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __call__(self, level: str, message: str, /, **fields: Any) -> None:
        self.lines.append((level, message, fields))

    def matching(self, text: str) -> list[dict[str, Any]]:
        return [fields for _, message, fields in self.lines if text in message]


def ignored(*_: object) -> None:
    """For a callback that a test does not look at. Not `print`: a thread that outlives its test by a moment would write
    into what the next one captures.
    """
