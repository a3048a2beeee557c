"""The messages about another configuration while running (`monitor.hot.reconfigure`, `monitor.side.reload`)."""

from __future__ import annotations

from typing import NamedTuple

# hot -> side


class Reread(NamedTuple):
    """SIGHUP has come: read the configuration again, and send it (`reconfigure`) if it is good."""


# side -> hot


class Reconfigure(NamedTuple):
    """Another configuration, read and checked: take it between two passes (the side waits for `config_number`)."""

    number: int  # higher than that of each before, taken or refused
    config: str  # JSON of `monitor.settings.config.RunConfig`
    staged: bool = False  # pods change with it: wait for `apply`, and keep what comes of known pods until then


class Apply(NamedTuple):
    """All pods that change with a configuration are sent: take them and it in one step."""

    number: int


FromConfig = Reread
ToConfig = Reconfigure | Apply
FROM_CONFIG: dict[str, type[FromConfig]] = {"reread": Reread}
TO_CONFIG: dict[str, type[ToConfig]] = {"reconfigure": Reconfigure, "apply": Apply}
