"""The exceptions that Pelton raises: one base class, and a subclass where a caller can react to the difference.

Where Python has a class of its own for the case, ours derives from it too, so that `except ValueError` and
`except TimeoutError` do what one expects.
"""

from __future__ import annotations


class PeltonError(RuntimeError):
    """Base of every error of Pelton's. Its text names rank, bucket, tensor and operation where they apply."""


class InvalidArgument(PeltonError, ValueError):
    """An argument is wrong, or differs between ranks; nothing was communicated."""


class DeadlineExceeded(PeltonError, TimeoutError):
    """Something did not happen in time; the text names the ranks that are late or missing."""


class PeerLost(PeltonError, ConnectionError):
    """Another rank, or the coordinator, died or can no longer be reached."""


class Aborted(PeltonError):
    """The operation was ended by someone: a rank left, reported a failure or called abort()."""


class AlreadyExists(PeltonError):
    """A second process with the same rank number, or a second thing with the same name."""


class NotFound(PeltonError, LookupError):
    """A name that nothing is registered under."""


class FailedPrecondition(PeltonError):
    """The state does not allow the call, for instance world sizes or protocol versions that differ."""


class RepeatedInitializationError(FailedPrecondition):
    """The process group is initialised already."""


class PermissionDenied(PeltonError, PermissionError):
    """The job's token is missing or wrong."""


class ResourceExhausted(PeltonError):
    """A bound was reached: memory, ports, messages."""


class Unsupported(PeltonError, NotImplementedError):
    """Asked for something that this version does not offer."""


class InternalError(PeltonError):
    """A mistake of Pelton's own; please report it."""


# Source: absl::StatusCode, whose numbers are fixed.
_CLASS_OF_CODE: dict[int, type[PeltonError]] = {
    1: Aborted,  # kCancelled
    3: InvalidArgument,
    4: DeadlineExceeded,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: ResourceExhausted,
    9: FailedPrecondition,
    10: Aborted,
    11: InvalidArgument,  # kOutOfRange
    12: Unsupported,
    13: InternalError,
    14: PeerLost,  # kUnavailable
    15: InternalError,  # kDataLoss
    16: PermissionDenied,  # kUnauthenticated
}


def from_status(code: int, message: str) -> BaseException:
    """The exception for a status of the runtime.

    Args:
      code: an `absl::StatusCode` other than OK.
      message: the status's text.

    Returns:
      An exception, not raised; `PeltonError` itself for codes that no class stands for.
    """
    return _CLASS_OF_CODE.get(code, PeltonError)(message)
