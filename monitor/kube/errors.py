"""What can go wrong between us and an API server or kubelet, by the names that apimachinery gives it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from monitor.documents import shortened
from monitor.errors import MonitorError

_SHOWN = 300
#: From the start: a webhook writes any text after its own name.
_NO_RIGHT = re.compile(
    r'[^:"]*: HTTP 403 Forbidden: (?:\S+(?: "[^"]*")? is )?forbidden: User "[^"]*" cannot [a-z]+ (?:resource|path) '
)


class KubeError(MonitorError):
    """A request that did not do what it was for."""


class Cancelled(Exception):
    """The stop event was set while a call was waiting. It is no MonitorError, which handlers try again."""


class TransportError(KubeError):
    """No complete answer: refused, reset, timed out, cut off, not trusted. The request may have been carried out."""


class TimedOut(TransportError):
    """A time-out of ours passed."""


class CertificateError(TransportError):
    """The server is not the one that the CA, the pinned certificate or the name asks for. Nothing was sent."""


class InvalidResponse(KubeError):
    """An answer that is no JSON, or not of the requested shape."""


class ResponseTooLarge(KubeError):
    """An answer beyond the budget of bytes, depth or items."""


class ApiError(KubeError):
    """The server refused: HTTP ``code``, and ``details`` of its Status object.

    ``code`` is 0 where a watch sent an ERROR event that has none. ``retry_after_s`` is Retry-After, None without.
    """

    def __init__(
        self,
        message: str,
        remedy: str = "",
        code: int = 0,
        details: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, remedy)
        self.code = code
        self.details: Mapping[str, Any] = details or {}
        self.retry_after_s = retry_after_s

    def has_cause(self, cause: str, key: str = "reason") -> bool:
        """Whether ``details.causes`` has this reason, as `ResourceVersionTooLarge` or `DisruptionBudget`."""
        causes = self.details.get("causes")
        return isinstance(causes, list) and any(isinstance(one, dict) and one.get(key) == cause for one in causes)


class Unauthorized(ApiError):
    """401: the token or client certificate is not valid (any more)."""


class Forbidden(ApiError):
    """403: the remedy is the RBAC rule that is missing."""

    @property
    def by_authorizer(self) -> bool:
        """Whether a right is missing. A quota, a webhook or a namespace that ends are 403 too, in other words:
        `responsewriters.ForbiddenStatusError` of apiserver is the one that names the user.
        """
        return _NO_RIGHT.match(self.message) is not None


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: a precondition does not hold (uid, resourceVersion), or the object was changed meanwhile.

    Also the 422 that a patch with another metadata.uid gets (Kubernetes 1.36: "field is immutable"): the object was
    deleted and made anew.
    """


class AlreadyExists(ApiError):
    """409 to a create."""


class ResourceExpired(ApiError):
    """410: this resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """422: a field has a value that is not allowed, or is immutable."""


class TooManyRequests(ApiError):
    """429: throttled; of pods/eviction also a PodDisruptionBudget that does not allow it (`budget_blocks`)."""

    @property
    def budget_blocks(self) -> bool:
        return self.has_cause("DisruptionBudget")


class ServerError(ApiError):
    """5xx: the server cannot now (503, 504), or is broken (500). Also 408, of a proxy."""


_BY_CODE: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: ServerError,
    409: Conflict,
    410: ResourceExpired,
    422: Invalid,
    429: TooManyRequests,
}
#: The reasons that say more than the code, or that stand where there is no code.
_BY_REASON: Mapping[str, type[ApiError]] = {
    **{kind.__name__: kind for kind in (*_BY_CODE.values(), AlreadyExists) if kind is not ResourceExpired},
    **dict.fromkeys(("Gone", "Expired"), ResourceExpired),
    **dict.fromkeys(("InternalError", "ServerTimeout", "ServiceUnavailable", "Timeout"), ServerError),
}


def api_error(
    what: str, code: int, status: object, *, remedy: str = "", retry_after_s: float | None = None, text: str = ""
) -> ApiError:
    """The error of a Status object, which may be anything; ``text`` is the answer where it is no JSON.

    ``code`` is that of HTTP, 0 for an ERROR event: then the object's own is taken, which may stand in `status`, and
    without any the reason says which error it is.
    """
    found: Mapping[str, Any] = status if isinstance(status, dict) else {}
    code = code or _number(found.get("code")) or _number(found.get("status"))
    reason = value if isinstance(value := found.get("reason"), str) else ""
    message = value if isinstance(value := found.get("message"), str) else text
    details: Mapping[str, Any] = value if isinstance(value := found.get("details"), dict) else {}
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code) or (ServerError if code >= 500 else ApiError)
    if retry_after_s is None and (seconds := _number(details.get("retryAfterSeconds"))):
        retry_after_s = float(seconds)
    text = shortened(" ".join(message.split()), _SHOWN)
    head = " ".join(filter(None, (f"{what}: {f'HTTP {code}' if code else 'an ERROR event'}", reason)))
    about = f"{head}: {text}" if text else head, remedy, code, details, retry_after_s
    made = kind(*about)
    return Conflict(*about) if kind is Invalid and made.has_cause("metadata.uid", "field") else made


def _number(value: object) -> int:
    """An HTTP code or seconds, which some servers write as text; 0 if it is neither."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0
