"""What a mode that holds no pods has in the place of `monitor.hold.control`, which it does not import (1.3 MB)."""


class NoHolds:
    """Does nothing, and keeps no pod from its eviction."""

    is_in_the_way, hurries = False, True

    def _nothing(self, *_: object, **__: object) -> bool:
        return False

    begin = moved = prepare = look_uncrossed = keeps = acted = went = dropped = _nothing
    report_all = helper_lost = release_all = take_eviction = take_softened = _nothing

    def timers(self, *_: object) -> tuple[()]:
        return ()
