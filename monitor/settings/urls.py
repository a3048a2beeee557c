"""A URL of a receiver of alerts, checked as it is read."""

from __future__ import annotations

from urllib.parse import urlsplit

from monitor.errors import ConfigError

ALERTMANAGER_PATH = "/api/v2/alerts"


def check_url(text: str, option: str) -> str:
    """The URL as it is used (no slash at the end). Raises ConfigError, naming the option, when it is none."""

    def wrong(problem: str, remedy: str) -> ConfigError:
        return ConfigError(f"{option}: {_shown(text)!r} {problem}", remedy)

    example = "write http://HOST:PORT or https://HOST/PATH"
    if not text.isascii() or not text.isprintable() or " " in text:
        raise wrong("has a blank or a character that is not printable ASCII", "write such characters as %XX")
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise wrong(f"is not a URL ({error})", example) from error
    if parts.scheme not in ("http", "https"):
        raise wrong("does not begin with http:// or https://", example)
    if not host:
        raise wrong("names no host", example)
    if port == 0:
        raise wrong("has port 0", example)
    if parts.fragment:
        raise wrong("has a fragment (#...), which is never sent", "leave it out")
    if "alertmanager" in option:
        if parts.query:
            raise wrong("has a query (?...)", f"give the base URL; {ALERTMANAGER_PATH} is added to it")
        if "/api/v" in parts.path:
            raise wrong("is the address of the API", f"give the base URL; {ALERTMANAGER_PATH} is added to it")
        return text.rstrip("/")
    return text


def _shown(url: str) -> str:
    """The URL without a password, for messages."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://...@{tail}" if at and "://" in head else url
