"""Tells functional calls of a module, with tensors in its parameters' place, from a module that has been changed."""

from __future__ import annotations

import sys
from types import FrameType

import torch
from torch import nn
from torch.nn.utils import stateless

_FUNCTIONAL_CALL = stateless._functional_call.__code__


def is_functional_call(module: nn.Module) -> bool:
    """Whether the module runs with somebody's tensors in its parameters' place: those are the caller's, and neither
    communicated nor written to. To be asked where the module has other members than it was wrapped with.
    """
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            continue  # what torch.jit.load gives has plain tensors for parameters
        if any(p is not None and not isinstance(p, nn.Parameter) for p in part._parameters.values()):
            return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _FUNCTIONAL_CALL:
            return True
        frame = frame.f_back
    return False
