"""What an installed wheel must do by itself; started by tools/wheels, and by itself again as each rank of a job.

It uses the wheel alone: nothing of the checkout is on its path.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

WORLD_SIZE = 2
# Whose libraries may be mapped from outside the wheel: the system's C and C++ ones, torch's, Python's.
PACKED = ("grpc", "gpr", "absl", "protobuf", "hwy", "cares", "re2", "upb", "address_sorting")


def rank(backend: str) -> None:
    """Trains with two algorithms, reduces through torch.distributed, and looks at what is mapped."""
    import pelton.torch_api as bagua
    import torch
    from pelton.torch_api.algorithms.bytegrad import ByteGradAlgorithm
    from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm

    torch.manual_seed(0)
    bagua.init_process_group()
    for algorithm in (GradientAllReduceAlgorithm(), ByteGradAlgorithm(hierarchical=False)):
        model = torch.nn.Linear(64, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = model.with_bagua([optimizer], algorithm)  # type: ignore[operator]
        for step in range(3):
            inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(10 * step + bagua.get_rank()))
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        mean = own.clone()
        bagua.allreduce(own, mean, op=bagua.ReduceOp.AVG)
        assert torch.equal(own, mean), "the ranks' weights differ"
    daemons = _daemons()
    assert len(daemons) == (backend == "daemon"), f"--backend {backend}, but the daemons are {daemons}"
    for pid in (os.getpid(), *daemons):
        _check_mapped(pid)
    bagua.destroy_process_group()


def _daemons() -> list[int]:
    """The process that is this rank's backend, where it is another one."""
    place, _, path = os.environ["PELTON_COORDINATOR"].partition(":")
    if place != "unix":
        return []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(path)
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return [struct.unpack("3i", credentials)[0]]


def _check_mapped(pid: int) -> None:
    text = Path(f"/proc/{pid}/maps").read_text()
    paths = {line.split()[-1] for line in text.splitlines() if "/" in line}
    mine = Path(__file__).resolve().parents[2]
    for path in sorted(paths):
        name = Path(path).name
        outside = "site-packages" not in path
        assert not (outside and any(part in name for part in PACKED)), f"{path} is the system's, not the wheel's"
        assert not path.startswith(f"{mine}/torch_bindings"), f"{path} is the checkout's"


def job() -> int:
    """Starts the ranks by the command that the wheel installs, with their backends in process and in daemons."""
    command = [str(Path(sys.executable).parent / "pelton"), "run", "-np", str(WORLD_SIZE)]
    for backend in ("process", "daemon"):
        words = [*command, "--backend", backend, __file__, "rank", backend]
        status = subprocess.run(words, check=False, timeout=300).returncode
        if status != 0:
            print(f"--backend {backend}: the job ended with status {status}", file=sys.stderr)
            return status
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2])
    else:
        sys.exit(job())
