"""A job in which rank 1's Python operation never returns: `hanging_function.py sleeps|spins`.

It sleeps without the GIL, or it holds the GIL again and again. Either way both ranks get an error and end.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import pelton.torch_api as bagua
from pelton.errors import PeltonError
from pelton.torch_api.algorithms import Algorithm, AlgorithmImpl
from pelton.torch_api.bucket import BaguaBucket

from cases.checks import make_mlp, run_backward


def hang(_name: str) -> None:
    """What rank 1 does not come back from."""
    if bagua.get_rank() == 1 and sys.argv[1] == "sleeps":
        threading.Event().wait()
    while bagua.get_rank() == 1:
        pass


class _HangingImpl(AlgorithmImpl):
    def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
        bucket.append_python_op(hang)
        bucket.append_centralized_synchronous_op(average=True)


class _Hanging(Algorithm):
    def reify(self, process_group: Any) -> AlgorithmImpl:
        return _HangingImpl(process_group)


def main() -> None:
    """Prints the error that the backward pass ends with."""
    bagua.init_process_group(timeout=3)
    model: Any = make_mlp()
    model.with_bagua([], _Hanging())
    try:
        run_backward(model)
    except PeltonError as error:
        print(f"rank {bagua.get_rank()} got: {error}", flush=True)


if __name__ == "__main__":
    main()
