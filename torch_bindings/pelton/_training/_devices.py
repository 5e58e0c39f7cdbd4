"""On which devices tensors are served."""

from __future__ import annotations

import torch

from pelton.errors import InvalidArgument


def is_gpu(device: torch.device) -> bool:
    """Whether its streams are CUDA's; a device of PyTorch's PrivateUse1 kind is taken for one."""
    return device.type in ("cuda", torch._C._get_privateuse1_backend_name())


def gpu() -> torch.device:
    """This process's current GPU.

    Raises:
      InvalidArgument: there is none.
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not is_gpu(accelerator):
        raise InvalidArgument("there is no GPU here")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def check_device(device: torch.device, complaint: str) -> None:
    """Checks that tensors on a device can be communicated.

    Raises:
      InvalidArgument: it is neither the CPU nor a GPU; begins with `complaint`.
    """
    if device.type != "cpu" and not is_gpu(device):
        raise InvalidArgument(f"{complaint}; only tensors of the CPU and of GPUs can be communicated")
