"""Errors a user can act on, and the exit code each one ends with.

Exit codes of every command: 0 ok, 1 failure, 2 usage (bad option, configuration, manifest), 3 this kernel or machine
cannot do it (with the remedy), 4 pressure or findings present where a check was asked, 5 a hook of the daemon failed
while it ran: started again, it polls.
"""

from __future__ import annotations

import errno

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_CANNOT = 3
EXIT_FINDINGS = 4
EXIT_HOOK = 5


#: What helps against errors of system calls that are the machine's rather than the call's.
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (systemd: LimitNOFILE=)",
    errno.ENFILE: "raise the machine's limit of open files (sysctl fs.file-max)",
    errno.ENOMEM: "free memory, or raise the memory limit of the cgroup that outrace runs in",
}


def remedy_of(number: int | None, otherwise: str) -> str:
    """The remedy for this errno, ``otherwise`` where only the caller knows one."""
    return _REMEDIES.get(number or 0, otherwise)


class MonitorError(Exception):
    """Something went wrong that one line explains; ``remedy`` says what to do about it."""

    exit_code = EXIT_FAILURE

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class InUseError(MonitorError):
    """Another process has what only one can have. When it lets go, trying again will help."""


class ConfigError(MonitorError):
    """The user's input is wrong: names the file or option, the key, and the remedy."""

    exit_code = EXIT_USAGE


class CannotError(MonitorError):
    """This kernel, machine or set of privileges cannot do what was asked."""

    exit_code = EXIT_CANNOT
