"""Makes the name "pelton" known to torch.distributed.

`import pelton` calls it, and so does `import torch` itself where the package is installed, through the entry point
`torch.backends`: then `torch.distributed.init_process_group("pelton")` works without any import of Pelton's. The
extension module is loaded by the first process group, not before.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Registers the backend for CPU tensors. Idempotent."""
    import torch.distributed as dist

    if dist.is_available() and "pelton" not in dist.Backend.backend_list:
        dist.Backend.register_backend("pelton", _create, extended_api=True, devices=["cpu"])


def _create(group: Any, options: Any) -> Any:
    from pelton.distributed._process_group import create

    return create(group, options)
