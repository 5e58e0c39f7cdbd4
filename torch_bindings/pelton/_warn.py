"""Warnings that name the user's line, however many of Pelton's and torch's functions lie between it and what warns."""

from __future__ import annotations

import sys
import threading
import warnings
from pathlib import Path
from types import FrameType

import torch

# Python 3.12 has `skip_file_prefixes` for this, but 3.10 is supported as well.
_LIBRARIES = (
    *(f"{Path(file).parent}/" for file in (__file__, torch.__file__)),
    threading.__file__,
    "<eval_with_key>",  # what torch.fx makes of a model
)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """As `warnings.warn`, of the innermost line that is neither Pelton's nor torch's.

    Args:
      text: what happened, and what to do.
      category: of the warning.
    """
    frame = _users(sys._getframe(1))
    if frame is None:  # a thread of autograd's or of ours, for which the main thread usually waits
        frame = _users(sys._current_frames().get(threading.main_thread().ident or 0))
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
        return
    names = frame.f_globals
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=names.get("__name__") or "<string>",  # without a module the warning would be dropped
        registry=names.setdefault("__warningregistry__", {}),  # by which a line warns once, as with warnings.warn
    )


def _users(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's, from one on outwards; None: there is none."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame
