"""Pelton: communication for data-parallel training.

`pelton.torch_api` carries the API that training scripts use; `pelton.distributed` is the way in through
`torch.distributed`, whose backend "pelton" is registered by importing this package. Importing `pelton` imports torch
first, because the extension module needs torch's libraries to be loaded.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from types import ModuleType

import pelton_autoload
import torch

from pelton import _built_for  # noqa: F401  (refuses another torch before the extension is loaded)
from pelton._version import __version__ as __version__

try:
    import pelton._C  # noqa: F401  (`from pelton import _C` would blame a circular import where the file is missing)
except ImportError as error:
    raise ImportError(
        "pelton's extension module cannot be loaded "
        f"({error}). Install the package with `pip install .` (or `pip install -e .`) in its checkout, with this "
        f"Python and this torch ({torch.__version__})."
    ) from error

from pelton import _C as _C
from pelton import errors
from pelton._algorithms import AlgorithmDescription, OptionDescription, algorithm, algorithms
from pelton._check import check
from pelton._front import autotune, init, rank, world_size, wrap, wrapping_of
from pelton._log import set_log_callback

pelton_autoload.register()

__all__ = [
    "AlgorithmDescription",
    "OptionDescription",
    "algorithm",
    "algorithms",
    "autotune",
    "check",
    "empty",
    "errors",
    "gradients_in_shared_memory",
    "init",
    "rank",
    "set_gradient_allocator",
    "set_log_callback",
    "world_size",
    "wrap",
    "wrapping_of",
]


def empty(*shape: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised CPU tensor in memory that the other ranks of this host reach directly.

    Collectives on such tensors are faster than on others, because nothing has to be copied between processes.

    Args:
      *shape: the sizes, one by one or as one sequence.
      dtype: the element type; torch's default type if None.

    Raises:
      InvalidArgument: a size is negative, or the type cannot be communicated.
      ResourceExhausted: there is no memory left.
    """
    sizes = [int(size) for part in shape for size in (part if isinstance(part, Sequence) else (part,))]
    return _C.empty(sizes, torch.get_default_dtype() if dtype is None else dtype)


def __getattr__(name: str) -> ModuleType:
    """`pelton.torch_api` is imported when it is first asked for, because that changes classes of torch's."""
    if name == "torch_api":
        return importlib.import_module("pelton.torch_api")
    raise AttributeError(f"module 'pelton' has no attribute {name!r}")


_gradient_allocator: bool | None = None


def set_gradient_allocator(enabled: bool | None) -> None:
    """Says whether models that are wrapped from now on have large gradients in shared memory, where they need no copy.

    Those are gradients of 64 KiB and more of parameters on the CPU. A process that is forked from a rank sees in them
    what they hold when it looks; what it writes there stays its own.

    Args:
      enabled: True: of every model; False: of none; None, the default: of models whose ranks all share a host.
    """
    global _gradient_allocator
    _gradient_allocator = enabled
    _C.set_gradient_allocator(enabled)


@contextlib.contextmanager
def gradients_in_shared_memory() -> Iterator[None]:
    """Within it, large CPU tensors are born in shared memory, whoever allocates them.

    Meant for measuring other libraries with the same allocator: gradients of a wrapped model need no such scope.
    """
    _C.set_gradient_allocator(True)
    _C.begin_shared_allocation()
    try:
        yield
    finally:
        _C.end_shared_allocation()
        _C.set_gradient_allocator(_gradient_allocator)
