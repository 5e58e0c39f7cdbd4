"""Makes the name "pelton" known to torch.distributed.

`import pelton` calls it, and so does `import torch` itself where the package is installed, through the entry point
`torch.backends`: then `torch.distributed.init_process_group("pelton")` works without any import of Pelton's. The
extension module is loaded by the first process group, not before.

With PELTON_REPLACE_GLOO=1 in the environment Pelton also takes gloo's place (`gloos_seat`).
"""

from __future__ import annotations

import os
from typing import Any


def register() -> None:
    """Registers the backend for CPU tensors. Idempotent."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    if "pelton" not in dist.Backend.backend_list:
        dist.Backend.register_backend("pelton", _create, extended_api=True, devices=["cpu"])
    if is_on("PELTON_REPLACE_GLOO"):
        from pelton_autoload import gloos_seat

        gloos_seat.take()


def is_on(variable: str) -> bool:
    """Whether a variable of the environment is set to something that means yes."""
    return os.environ.get(variable, "0").strip().lower() not in ("", "0", "false", "no", "off")


def _create(group: Any, options: Any) -> Any:
    from pelton.distributed._process_group import create

    return create(group, options)
