"""Times Pelton's allreduce as Python calls it, on each rank: pelton_python_peer.py region|private BYTES..."""

import sys
import time

import pelton
import pelton.torch_api as bagua
import torch
from gloo_peer import iterations_of
from pelton.torch_api.communication import destroy_process_group


def main() -> None:
    kind, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]
    torch.set_num_threads(1)
    bagua.init_process_group()
    for size in sizes:
        tensor = pelton.empty(size // 4) if kind == "region" else torch.empty(size // 4)
        tensor.zero_()
        iterations = iterations_of(size)
        seconds = []
        batch = 20 if size <= 65536 else 1
        for i in range(-(iterations // 10 + 2), iterations, batch):
            begin = time.perf_counter()
            for _ in range(batch):
                bagua.allreduce_inplace(tensor)
            if i >= 0:
                seconds.append((time.perf_counter() - begin) / batch)
        seconds.sort()
        if bagua.get_rank() == 0:
            print(size, f"{seconds[len(seconds) // 2]:.9f}", f"{seconds[0]:.9f}", flush=True)
    destroy_process_group()


if __name__ == "__main__":
    main()
