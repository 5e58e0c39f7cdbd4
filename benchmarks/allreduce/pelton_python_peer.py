"""Times Pelton's allreduce as Python calls it, on each rank: pelton_python_peer.py region|private CASE..."""

import sys

import pelton
import pelton.torch_api as bagua
import torch
from pelton.torch_api.communication import destroy_process_group
from timing import time_cases


def main() -> None:
    """Runs on every rank under `pelton run`."""
    bagua.init_process_group()
    make = pelton.empty if sys.argv[1] == "region" else torch.empty
    time_cases(sys.argv[2:], make, bagua.allreduce_inplace, prints=bagua.get_rank() == 0)
    destroy_process_group()


if __name__ == "__main__":
    main()
