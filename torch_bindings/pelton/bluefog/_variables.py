"""BlueFog's environment variables: the level of what is told, and those that mean nothing here, with the reason.

BLUEFOG_NODES_PER_MACHINE and BLUEFOG_TIMELINE are read by `_world`, BLUEFOG_START_TIMEOUT by bfrun.
"""

from __future__ import annotations

import logging
import os

from pelton import _log
from pelton.errors import InvalidArgument

_LOG_LEVEL = "BLUEFOG_LOG_LEVEL"
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_NO_MPI = "there is no MPI behind Pelton"
_NO_BUILD = "it is for the build of BlueFog"
_OPERATIONS = ("ALLREDUCE", "BROADCAST", "ALLGATHER", "NEIGHBOR_ALLREDUCE", "NEIGHBOR_ALLGATHER", "WIN_OPS")
_OF_ITS_BUILD = (
    *(f"BLUEFOG_{kind}" for kind in ("WITH_NCCL", "WITHOUT_PYTORCH", "WITH_TENSORFLOW", "WITHOUT_TENSORFLOW")),
    "BLUEFOG_MPICXX_SHOW",
    *(f"BLUEFOG_{library}_{what}" for library in ("CUDA", "NCCL") for what in ("HOME", "INCLUDE", "LIB")),
    "BLUEFOG_NCCL_LINK",
)

WITHOUT_MEANING = {
    "BLUEFOG_CYCLE_TIME": "no thread wakes up by a clock",
    "BLUEFOG_FUSION_THRESHOLD": "operations are not fused, and optimizers send weights in buckets of up to 8 MiB",
    "BLUEFOG_LOG_HIDE_TIME": "lines have no time unless the logger 'pelton' is given a format that has one",
    "BLUEFOG_MPI_THREAD_LEVEL": _NO_MPI,
    **{f"BLUEFOG_{operation}_BY_MPI": _NO_MPI for operation in _OPERATIONS},
    "BLUEFOG_OPS_ON_CPU": "an operation runs where its tensor is",
    "BLUEFOG_WIN_ON_GPU": "windows are in the CPU's memory",
    "BLUEFOG_MAX_WIN_SENT_LENGTH": "a put is not cut into pieces that others see",
    "BLUEFOG_NUM_FINALIZER_THREADS": "whoever waits for an operation ends it, without a thread for that",
    "BLUEFOG_SLEEP_USEC_FOR_WIN_PASSIVE": "no thread asks again and again whether another rank wants something",
    **dict.fromkeys(_OF_ITS_BUILD, _NO_BUILD),
}


def take_log_level() -> None:
    """Gives the logger "pelton" the level that BLUEFOG_LOG_LEVEL names, if it is set.

    Raises:
      InvalidArgument: it names none.
    """
    text = os.environ.get(_LOG_LEVEL)
    if text is None:
        return
    if text.lower() not in _LEVELS:
        raise InvalidArgument(f"{_LOG_LEVEL}={text!r}: must be one of {', '.join(_LEVELS)}")
    _log.set_level(_LEVELS[text.lower()])


def tell_of_those_without_meaning() -> None:
    """A warning for each that is set and changes nothing."""
    for name, reason in WITHOUT_MEANING.items():
        if name in os.environ:
            _log.tell(logging.WARNING, f"bluefog: {name} is set and changes nothing, because {reason}")
