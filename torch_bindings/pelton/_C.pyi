"""The extension module: what Python sees of the runtime. Waits release the GIL.

Every error of the runtime arrives as the exception that `pelton.errors.from_status` makes of it.
"""

from typing import Sequence

import torch

class Backend:
    """The process's backend: control plane, transports and their communicators.

    Shape: none. Threads: any. One per process group initialisation; restartable.
    """

    rank: int
    world_size: int
    def __init__(
        self,
        rank: int,
        world_size: int,
        coordinator_address: str,  # "host:port"; rank 0 serves it when `serve` is set
        job_id: str,
        job_token: str,
        serve: bool,
        timeout_s: float,  # of each later operation
        join_timeout_s: float,
    ) -> None:
        """Joins the job. Blocks: until the world is complete, or `join_timeout_s`.

        Raises: DeadlineExceeded naming the missing ranks; InvalidArgument (ValueError) naming what differs.
        """

    @staticmethod
    def serve_coordinator(bind: str, job_token: str, world_size: int) -> "Coordinator":
        """Starts the coordinator of a job on "host:port" (port 0: a free one) in this process."""
    def communicator(self, ranks: Sequence[int]) -> "Communicator":
        """Opens a communicator for user calls; collective over `ranks`, in the same order on all of them."""
    def host_ranks(self) -> list[int]:
        """World ranks proved to share this rank's host, ascending, this one included."""
    def stop(self, timeout_s: float) -> None:
        """Leaves the job and frees everything. Idempotent. Blocks: until `timeout_s`."""

class Coordinator:
    address: str
    def stop(self, timeout_s: float) -> None:
        """Ends it when every rank has left, or after `timeout_s`. Idempotent."""

class Communicator:
    """One group's collectives on CPU tensors. `rank()` and all peers are ranks of the group."""

    def rank(self) -> int: ...
    def nranks(self) -> int: ...
    def device_id(self) -> int: ...
    def abort(self) -> None: ...
    def check_abort(self) -> bool: ...
    # Tensors must be contiguous CPU tensors (ValueError names the argument). All block until done.
    def allreduce(self, send: torch.Tensor, recv: torch.Tensor, op: int) -> None: ...
    def reduce(self, send: torch.Tensor, recv: torch.Tensor, dst: int, op: int) -> None: ...
    def reduce_scatter(self, send: torch.Tensor, recv: torch.Tensor, op: int) -> None: ...
    def allgather(self, send: torch.Tensor, recv: torch.Tensor) -> None: ...
    def broadcast(self, tensor: torch.Tensor, src: int) -> None: ...
    def send(self, tensor: torch.Tensor, dst: int, tag: int) -> None: ...
    def recv(self, tensor: torch.Tensor, src: int, tag: int) -> None: ...
    def barrier(self) -> None: ...

class Model:
    """Buckets, plan and C++ autograd hooks of one wrapped model.

    Gradients become ready without the GIL; the end of each outermost backward waits for the round.
    """

    def __init__(
        self,
        backend: Backend,
        ranks: Sequence[int],
        name: str,
        parameters: Sequence[tuple[str, torch.Tensor]],  # in registration order, each tensor once
        algorithm: str,  # a name of algorithms()
        options: dict[str, str],  # of the algorithm
        bucket_size_bytes: int,
        flatten: bool,
        timeout_s: float,
    ) -> None:
        """Plans the buckets, agrees on the plan with all ranks and installs the hooks. Collective over `ranks`.

        Raises: ValueError naming the first tensor that differs between ranks.
        """

    def set_synchronized(self, enabled: bool) -> None:
        """False: backwards accumulate locally (`no_sync`); the next synchronised round communicates the sum."""
    def check_parameters(self) -> list[str]:
        """Names of parameters that were cast, moved, resized or whose hook is gone since registration."""
    def check_round(self) -> None:
        """Raises what an earlier round failed with, if anything."""
    def finish_round(self) -> None:
        """Completes a round that a nested backward (re-entrant checkpointing) left open; raises what it failed with."""
    def buckets(self) -> list[list[str]]:
        """Tensor names by bucket, in the order in which buckets are launched."""
    def statistics(self) -> dict[str, float]:
        """rounds, wait_seconds (trainer blocked on communication), bytes, copied_bytes, plan_generation."""
    def detach(self) -> None:
        """Removes the hooks and frees the buckets; gradients that lie in them get memory of their own. Idempotent."""

def algorithms() -> list[tuple[str, str]]:
    """(name, summary) of every registered algorithm."""

def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor in memory that the ranks of this host reach directly."""

def set_gradient_allocator(enabled: bool) -> None:
    """Lets backward passes allocate gradients of 64 KiB and more in shared memory."""

def begin_shared_allocation() -> None:
    """Opens a scope in which large CPU tensors come from shared memory, while the allocator is enabled. Counted."""

def end_shared_allocation() -> None:
    """Closes the scope that the matching begin opened."""
