"""What the keys of the live view of `outrace top` do: the state of the view, without a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.cli.top_pods import SORTS

PODS, POD, INCIDENTS, HELP = "pods", "pod", "incidents", "help"
#: Longer names there are not, nor would it fit.
_MOST_FILTER = 60
_PAGE = 10


@dataclass
class View:
    """``selected`` is the uid of the chosen pod, None while nobody has chosen; ``offset`` the first line of a page that
    is longer than the screen.
    """

    page: str = PODS
    sort: int = 0
    backwards: bool = False
    filter: str = ""
    editing: bool = False
    paused: bool = False
    selected: str | None = None
    offset: int = 0
    ended: bool = False

    def press(self, key: str, uids: Sequence[str]) -> None:
        """``key`` as `monitor.cli.terminal` names it; ``uids`` of the pods in the order they are shown."""
        if self.editing:
            self._edit(key)
        elif key == "q":
            self.ended = True
        elif key == " ":
            self.paused = not self.paused
        elif self.page == PODS:
            self._pods(key, uids)
        elif key in ("up", "k"):
            self.offset = max(0, self.offset - 1)
        elif key in ("down", "j"):
            self.offset += 1
        elif key in ("pgup", "pgdn"):
            self.offset = max(0, self.offset + (_PAGE if key == "pgdn" else -_PAGE))
        elif key in ("home", "g"):
            self.offset = 0
        elif key in ("esc", "backspace", "enter"):
            self._open(PODS)
        elif key in _PAGES:
            self._open(PODS if self.page == _PAGES[key] else _PAGES[key])

    def _open(self, page: str) -> None:
        self.page, self.offset = page, 0

    def _edit(self, key: str) -> None:
        if key == "enter":
            self.editing = False
        elif key == "esc":
            self.editing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1:
            self.filter = (self.filter + key)[:_MOST_FILTER]

    def _pods(self, key: str, uids: Sequence[str]) -> None:
        if key in _MOVES:
            self._move(_MOVES[key], uids)
        elif key in ("home", "g", "end", "G") and uids:
            self.selected = uids[0 if key in ("home", "g") else -1]
        elif key == "enter" and uids:
            self._move(0, uids)
            self._open(POD)
        elif key in ("s", "S"):
            self.sort = (self.sort + (1 if key == "s" else -1)) % len(SORTS)
        elif key == "r":
            self.backwards = not self.backwards
        elif key == "/":
            self.editing = True
        elif key == "esc":
            self.filter, self.selected = "", None
        elif key in _PAGES:
            self._open(_PAGES[key])

    def _move(self, by: int, uids: Sequence[str]) -> None:
        """Choose another pod; the first one where none is chosen, or the chosen one is not shown any more."""
        if not uids:
            return
        if self.selected not in uids:
            self.selected = uids[0]
        else:
            self.selected = uids[min(len(uids) - 1, max(0, uids.index(self.selected) + by))]


_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -_PAGE, "pgdn": _PAGE}
_PAGES = {"i": INCIDENTS, "h": HELP, "?": HELP}
