"""A PyTorch device for tests on machines without a GPU: `accelerator.load()`, then `model.to("standin:0")`.

Its memory, streams and events are those of the stand-in for CUDA (comm/transport/nccl/stand_in), which computes
nothing: operators run on the CPU. They read after what is on the current stream, and write in its order; so work on
another stream that nobody waits for shows as a wrong value. The same library stands in for NCCL, between processes.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import types
from pathlib import Path
from typing import Any

NAME = "standin"
DEVICE_COUNT = 2  # autograd has a thread for each
TARGET = "tests/accelerator/_accelerator.so"
STAND_IN = "comm/transport/nccl/stand_in/libpelton_gpu_stand_in.so"
KERNELS = "algorithms/codec/cuda/stand_in/libpelton_kernels_stand_in.so"
BUILT = Path(__file__).resolve().parents[2] / "bazel-bin"


def extension() -> Path:
    """The extension, from PELTON_ACCELERATOR or where plain Bazel puts it.

    Raises:
      FileNotFoundError: it is not built.
    """
    path = Path(os.environ.get("PELTON_ACCELERATOR", BUILT / TARGET))
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: bazel build //tests/accelerator:_accelerator")
    return path


def stand_in(library: str = STAND_IN) -> Path:
    """The library that stands in for the CUDA runtime and for NCCL, or another one; it is built with the extension."""
    return extension().parents[len(Path(TARGET).parents) - 1] / library


def environment(lag_us: int = 0) -> dict[str, str]:
    """What a process needs that is to call `load`: to be given to spawn.run as changes, or set before.

    Args:
      lag_us: how much later every piece of work on a stream begins, at most, by chance: who reads on one stream
        what another writes, and waits for nobody, then mostly reads too early. Units: microseconds.

    Raises:
      FileNotFoundError: it is not built.
    """
    library = str(stand_in())
    return {
        "PELTON_ACCELERATOR": str(extension()),
        "PELTON_CUDART_LIBRARY": library,
        "PELTON_NCCL_LIBRARY": library,
        "PELTON_KERNELS_LIBRARY": str(stand_in(KERNELS)),
        "PELTON_STAND_IN_PROCESSES": "1",
        "PELTON_STAND_IN_DEVICES": str(DEVICE_COUNT),
        "PELTON_STAND_IN_LAG_US": str(lag_us),
    }


@functools.cache
def load() -> Any:
    """Makes the device known to PyTorch as "standin", and torch.standin. Returns the extension module.

    Raises:
      RuntimeError: the environment names no stand-in.
    """
    import torch
    from torch.utils import backend_registration

    spec = importlib.util.spec_from_file_location("_accelerator", extension())
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{extension()} is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    backend_registration.rename_privateuse1_backend(NAME)
    register: Any = torch._register_device_module  # PyTorch has no types for it
    register(NAME, _device_module(module))
    backend_registration.generate_methods_for_privateuse1_backend()
    torch.empty(0, device=NAME)  # initializes it
    atexit.register(torch.accelerator.synchronize)  # what is on a stream at the end would run amid what is torn down
    return module


def gpus_kind() -> str:
    """The type of the devices that cases for a GPU run on: "cuda", or the stand-in's, which a rank loads here.

    Whoever only looks for cases keeps its PyTorch as it is.
    """
    import torch

    if "PELTON_STAND_IN_PROCESSES" in os.environ:
        load()
    return "cuda" if torch.cuda.is_available() else NAME


def _device_module(extension_module: Any) -> types.ModuleType:
    """torch.standin: the part of torch.cuda's interface that all accelerators have."""
    import torch

    module = types.ModuleType(f"torch.{NAME}")
    shared = torch.accelerator
    contents: dict[str, object] = {
        "Stream": functools.partial(torch.Stream, device=NAME),
        "Event": functools.partial(torch.Event, device=NAME),
        "device": lambda device: shared.device_index(torch.device(device).index),
        "current_device": shared.current_device_index,
        "current_stream": shared.current_stream,
        "device_count": extension_module.device_count,
        "is_available": lambda: extension_module.device_count() > 0,
        "is_initialized": lambda: True,
        # Without it PyTorch takes the device for not initialized, and synchronizes nothing.
        "_lazy_init": lambda: None,
        "set_device": shared.set_device_index,
        "set_stream": shared.set_stream,
        "synchronize": shared.synchronize,
        # Numbers are drawn on the CPU, whose generator torch.manual_seed has seeded.
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
    }
    vars(module).update(contents)
    return module
