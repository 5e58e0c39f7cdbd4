"""The extension module: what Python sees of the runtime. Waits release the GIL.

Every error of the runtime arrives as the exception that `pelton.errors.from_status` makes of it.
"""

import datetime
import enum
from typing import Any, Callable, Mapping, Sequence, TypedDict

import torch
import torch.distributed as dist

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
        coordinator_address: str,  # "host:port"
        job_id: str,
        job_token: str,
        timeout_s: float,  # of each later operation
        join_timeout_s: float,
        tls: Mapping[str, str] = ...,  # paths of PEM files: "ca", "certificate", "key"; and "server_name"
        interface: str = "",  # network interface of the wire between hosts; empty: towards the coordinator
        host_label: str = "",  # ranks with different ones share no memory, wherever they are
        schedules: str = "",  # rows "collective world_size bytes schedule", used between hosts, the same on all ranks
        wire: str = "tcp",  # between hosts; "ucx" where there is RDMA
        heartbeat_timeout_s: float = 10.0,  # how long the coordinator may be silent
    ) -> None:
        """Joins the job. Blocks: until the world is complete, or `join_timeout_s`.

        Raises: DeadlineExceeded naming the missing ranks; InvalidArgument (ValueError) naming what differs.
        """

    @staticmethod
    def serve_coordinator(
        bind: str,
        job_token: str,
        tls: Mapping[str, str] = ...,
        heartbeat_timeout_s: float = 10.0,  # how long a rank may be silent
    ) -> "Coordinator":
        """Starts the coordinator of a job on "host:port" (port 0: a free one) in this process."""
    def communicator(self, ranks: Sequence[int], name: str = "", schedules: str = "") -> "Communicator":
        """Opens a communicator for user calls; collective over `ranks`, in the same order on all of them.

        Errors and reports call its group `name`, if it has one. `schedules` are rows that go before the job's for its
        collectives between hosts, the same on all of them.
        """
    def serve_tools(self, path: str) -> ToolServer:
        """Answers tools at the Unix socket `path` (docs/daemon.md)."""
    def host_ranks(self) -> list[int]:
        """World ranks proved to share this rank's host, ascending, this one included."""
    def host_of(self) -> list[int]:
        """For each rank the lowest rank on its host, the same on all ranks."""
    host_warning: str
    """Why ranks that seemed to be on this rank's host are not counted to it; empty: there are none."""
    is_heir: bool
    """Whether this trainer is in the place of one that has died."""
    def tell_set_up_is_over(self, timeout_s: float) -> None:
        """This and the others tell the daemon, if there is one, how far the training has come."""
    def tell_snapshot_is_kept(self, timeout_s: float) -> None: ...
    def tell_snapshot_begins(self, timeout_s: float) -> None:
        """One is being copied beside training; what this process gets from now on is not in it."""
    def tell_snapshot_is_through(self, timeout_s: float) -> None:
        """The one that was begun counts."""
    def stop(self, timeout_s: float) -> None:
        """Leaves the job and frees everything. Idempotent. Blocks: until `timeout_s`."""

class ToolServer:
    def stop(self) -> None:
        """Closes the door; before the backend stops. Idempotent."""

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
    @staticmethod
    def check_reducible(dtype: torch.dtype, op: int) -> None:
        """Raises InvalidArgument if the reduction has no meaning for the type."""
    @property
    def cuda_stream(self) -> int: ...
    def close(self) -> None:
        """Gives it back; later operations raise FailedPrecondition. Idempotent."""
    # Tensors must be contiguous CPU tensors (ValueError names the argument). All block until done.
    def allreduce(self, send: torch.Tensor, recv: torch.Tensor, op: int) -> None: ...
    def reduce(self, send: torch.Tensor, recv: torch.Tensor, dst: int, op: int) -> None: ...
    def reduce_scatter(self, send: torch.Tensor, recv: torch.Tensor, op: int) -> None: ...
    def allgather(self, send: torch.Tensor, recv: torch.Tensor) -> None: ...
    def broadcast(self, tensor: torch.Tensor, src: int) -> None: ...
    def gather(self, send: torch.Tensor, recv: torch.Tensor, dst: int) -> None: ...
    def scatter(self, send: torch.Tensor, recv: torch.Tensor, src: int) -> None: ...
    def alltoall(self, send: torch.Tensor, recv: torch.Tensor) -> None: ...
    def alltoall_v(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],  # in elements, by rank
        send_displs: Sequence[int],
        recv: torch.Tensor,
        recv_counts: Sequence[int],
        recv_displs: Sequence[int],
    ) -> None: ...
    def send(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> None: ...
    def recv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> None: ...
    def barrier(self) -> None: ...

class WeightTable:
    """With whom a rank averages, and by which weights; known to this process alone."""

    def __init__(
        self,
        own: float,
        sources: Sequence[tuple[int, float]],  # by rank, ascending
        destinations: Sequence[tuple[int, float]],  # by rank, ascending
        sends_weights: bool = False,  # the destinations' travel with the messages; else they mean nothing
    ) -> None:
        """Raises InvalidArgument: a rank is negative or given twice, a weight is not finite."""

class Handle:
    """An operation under way."""

    def done(self) -> bool: ...
    def wait(self) -> torch.Tensor:
        """Blocks until it is done; its result, or raises its error. May be called again."""
    def lengths(self) -> list[int]:
        """Of a gather between neighbors that was waited for: the sources' first dimensions, in the table's order."""

class Queue:
    """A communicator whose collectives run in the order of their calls, and operations between neighbors by their edges.

    The plain forms begin an operation, those with `_now` also wait for it. Names are what ranks match operations
    between neighbors by, and compare collectives by. A target receives the result in place of a new tensor. Tensors are
    on the queue's device. On a GPU all operations run in the order of their calls, the same on all that take part in
    them, after what is on the caller's current stream.
    """

    def __init__(self, backend: Backend, ranks: Sequence[int], device: torch.device | None = None) -> None:
        """Opens it, for tensors of the device, the CPU if None; collective over `ranks`."""
    def allreduce(
        self, tensor: torch.Tensor, op: int, in_place: bool, name: str | None, target: torch.Tensor | None = None
    ) -> Handle: ...
    def allreduce_now(
        self, tensor: torch.Tensor, op: int, in_place: bool, name: str | None, *, shown_as: str | None = None
    ) -> torch.Tensor: ...
    def broadcast(self, tensor: torch.Tensor, root: int, in_place: bool, name: str | None) -> Handle: ...
    def broadcast_now(self, tensor: torch.Tensor, root: int, in_place: bool, name: str | None) -> torch.Tensor: ...
    def allgather(
        self,
        tensor: torch.Tensor,
        name: str | None,
        host: Queue | None = None,  # given on that of a GPU: the CPU's, for the shapes; waits for all ranks there
    ) -> Handle: ...
    def allgather_now(self, tensor: torch.Tensor, name: str | None, host: Queue | None = None) -> torch.Tensor: ...
    def neighbor_allreduce(
        self, tensor: torch.Tensor, table: WeightTable, name: str | None, target: torch.Tensor | None = None
    ) -> Handle: ...
    def neighbor_allreduce_now(self, tensor: torch.Tensor, table: WeightTable, name: str | None) -> torch.Tensor: ...
    def neighbor_allgather(
        self,
        tensor: torch.Tensor,
        table: WeightTable,
        name: str | None,
        host: Queue | None = None,  # given on that of a GPU: the CPU's, for the shapes; waits for the neighbors there
    ) -> Handle: ...
    def hierarchical_neighbor_allreduce(
        self,
        tensor: torch.Tensor,
        table: WeightTable,
        inner: Queue,  # of the ranks whose mean is averaged, for the same device
        name: str | None,
        target: torch.Tensor | None = None,
    ) -> Handle: ...
    def barrier(self, timeout_s: float | None = None) -> None: ...
    def leave(self, name: str, reason: str, timeout_s: float) -> None:
        """A barrier before this rank leaves, which meets no other one.

        Args:
          name: by which ranks at another operation know it.
          reason: why those that have not come by then fail. The error is PeerLost.
          timeout_s: until all have come. Units: seconds.
        """
    def close(self) -> None:
        """Ends what is under way; later operations raise FailedPrecondition. Idempotent."""

class WeightBucket:
    """Parameters of one type and device in a flat buffer, and another one, which takes what is combined.

    The two change places: the parameters' storages move, and with them all views. A parameter whose storage somebody
    else holds, or which is a part of other memory or not contiguous, is copied in and out. Threads: one at a time.
    """

    target: torch.Tensor  # where the result is to be written

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        """Moves the parameters in.

        Raises:
          InvalidArgument: one is on neither the CPU nor a GPU, or has another type or device than the first one.
        """
    def fits(self) -> bool:
        """Whether the parameters still have the shapes, type and device that the bucket was made for."""
    def gather(self) -> torch.Tensor:
        """The weights as they are now; nobody changes them until `adopt`."""
    def adopt(self) -> None:
        """Gives the parameters what is in the target."""

class Window:
    """A rank's end of a window, made by `Windows.create`.

    Threads: those of put and accumulate one at a time, those of get and update too; the two may overlap. Who locks
    unlocks. Owns: the window, and a reference to its tensor.
    """

    tensor: torch.Tensor  # on the CPU; the same memory as that of a GPU
    p: float  # of push-sum
    def put(
        self, tensor: torch.Tensor, destinations: list[tuple[int, float]], own_weight: float, with_p: bool
    ) -> None:
        """Raises:
        InvalidArgument: a rank is no destination, or the tensor is unlike the window's.
        PeerLost: names the destinations that have ended; the others were served.
        """
    def accumulate(
        self, tensor: torch.Tensor, destinations: list[tuple[int, float]], own_weight: float, with_p: bool
    ) -> None:
        """Raises: as put."""
    def get(self, sources: list[tuple[int, float]]) -> None:
        """Raises: as put."""
    def update(
        self,
        own_weight: float,
        sources: list[tuple[int, float]],
        resets: bool,
        with_p: bool,
        target: torch.Tensor | None = None,
    ) -> None:
        """Raises:
        InvalidArgument: a rank is no source.
        """
    def versions(self) -> list[tuple[int, int]]:
        """Of each source: values put and got since the last update."""
    def lock(self, peer: int, of_own: bool) -> None:
        """Raises:
        DeadlineExceeded: names who holds the mutex.
        FailedPrecondition: this thread does.
        """
    def unlock(self, peer: int, of_own: bool) -> None:
        """Raises:
        FailedPrecondition: this thread does not hold the mutex.
        """

class Windows:
    """The windows of a group, and a communicator by which they are made.

    Threads: one at a time. Owns: the communicator.
    """

    def __init__(self, backend: Backend, ranks: Sequence[int]) -> None:
        """Opens it; collective over `ranks`.

        Raises:
          Unsupported: the ranks are on several hosts.
        """
    def create(
        self, name: str, tensor: torch.Tensor, sources: list[int], destinations: list[int], zero_init: bool
    ) -> Window:
        """Collective.

        Raises:
          InvalidArgument: the ranks' names, shapes, dtypes or edges differ; said on every rank.
        """
    def barrier(self) -> None: ...
    def close(self) -> None:
        """Gives the communicator back; the windows stay usable. Idempotent."""

def number_of_name(name: str) -> int:
    """The number that stands for an operation's name in the runtime's texts, as its bucket."""

State = tuple[int, list[str], list[tuple[str, str, int, torch.Tensor]]]
"""What an algorithm remembers: rounds that have been, tensors in the plan's order (empty: the first plan), and of each
stage's buffers, tensor by tensor, key, tensor name, first element and values."""

def schedule(algorithm: str, options: dict[str, str]) -> tuple[str, str]:
    """What an algorithm communicates, one of gradients, momenta and weights; and its trigger, one of when_ready,
    in_forward, after_step, timer and on_call.
    """

class PlanVerdict:
    """How a candidate did against the one in force. Units: seconds."""

    current: int
    challenger: int
    current_s: float
    challenger_s: float
    gain_s: float  # of the last two alone: by how much a step of the challenger's is shorter
    noise_s: float  # and by how much that may be luck
    is_final: bool
    is_taken: bool

class PlanTuner:
    """Which of some candidates has its turn, while it is being found out which is the fastest."""

    def __init__(self, candidates: int, current: int, turn: int, skipped: int, most: int) -> None:
        """Units: `turn`, `skipped` and `most` in steps: of a turn, of those at its beginning that do not count, of all."""
    @property
    def turn(self) -> tuple[int, int]:
        """What is under way: a candidate and its steps; 0 of them: it stays."""
    def next(self, steps_s: Sequence[float], predicted_s: Sequence[float]) -> tuple[int, int]:
        """The turn is over: what its steps took, and, after the first turn, what a step should take by candidate."""
    @property
    def verdicts(self) -> list[PlanVerdict]:
        """What has been decided with the last turn."""

class TensorCopies:
    """Copies tensors beside training, on a thread of its own and on that of whoever waits."""

    @property
    def is_copied(self) -> bool:
        """Whether all is copied; True as well where nothing was begun."""
    @staticmethod
    def may_copy(tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in memory of PyTorch's own allocator, without gaps."""
    def begin(self, parts: Sequence[tuple[torch.Tensor, int]], target: torch.Tensor) -> None:
        """Begins to copy tensors to their places in `target`, in bytes. An earlier copy is abandoned.

        What a tensor's memory is now stays until it is copied, whatever memory the tensor gets meanwhile. Raises:
        InvalidArgument (ValueError): a tensor does not fit, or may not be copied (`may_copy`).
        """
    def finish(self, timeout_s: float) -> int | None:
        """Waits, and lets go of the tensors. The first one whose copy is not what it was at `begin`, as far as 64 bytes
        of every 64 KiB show it; None: there is none. Blocks: until `timeout_s`. Raises: DeadlineExceeded.
        """
    def abandon(self) -> None:
        """Gives up what is not copied, and lets go of the tensors."""

class BackwardWatch:
    """Hears of backward passes by the gradients that they accumulate, whatever made the loss.

    What torch.autograd.grad computes is no backward pass.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],  # each requires a gradient
        began: Callable[[], None],  # at the first gradient, before what was hooked later hears of it
        ends: Callable[[], None],  # once the gradients of a backward, or of an inner one, are there, before rounds end
        ended: Callable[[bool], None],  # at the end of the outermost backward; whether its graph is kept
    ) -> None:
        """Installs the hooks. Exceptions of the functions leave the backward pass."""
    def watch_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """The backward that reaches one of these non-leaf tensors is the outermost one."""
    def settle(self) -> None:
        """Ends a backward pass of which no end was seen: its gradients came from inner ones. Outside of backward."""
    def detach(self) -> None:
        """Removes the hooks. Idempotent."""

class Event(enum.Enum):
    """What a trainer does, as rounds of weights see it."""

    FORWARD_BEGINS = ...
    EVALUATION_BEGINS = ...
    BACKWARD_BEGINS = ...
    BACKWARD_ENDS = ...
    BEFORE_STEP = ...
    AFTER_STEP = ...
    STEP_SKIPPED = ...
    CALL = ...

class Model:
    """Buckets and plan of one wrapped model. Where the algorithm's tensors are communicated when ready, C++ hooks of
    autograd let them go, without the GIL, and the end of each outermost backward waits for the round; else they are
    copies of the parameters, and the algorithm's trigger makes rounds of the events, the same on all ranks.
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
        moments: Sequence[tuple[torch.Tensor, float]] = ...,  # by parameter, where momenta are communicated: they lie in
        # buckets from now on; and how much of each a new gradient leaves
        on_call: bool = False,  # Event.CALL makes rounds of the parameters, whatever the algorithm's trigger is
        steps: int = 0,  # that the trigger has counted before
        state: State = ...,  # of an earlier model of the same algorithm and tensors
        states: Sequence[State] = ...,  # in place of it: of all ranks of a group of any size, by rank
        schedules: str = ...,  # rows for collectives between hosts that go before the job's, the same on all ranks
    ) -> None:
        """Plans the buckets, agrees on the plan with all ranks and installs the hooks. Collective over `ranks`.

        Raises: ValueError naming the first tensor that differs between ranks.
        """

    def post(
        self,
        event: Event,
        optimizer: int = 0,  # of steps: a number of its own
        is_given: bool = True,  # the algorithm was given it
        given_count: int = 1,  # how many the algorithm was given
        may_go_on: bool = False,  # of BACKWARD_ENDS: another backward may follow that needs the weights as they are
    ) -> bool:
        """Does what is due then: begins a round, waits for one and merges its results; says whether the event completes a
        step of the model's. Raises what a round failed with.
        """
    def set_synchronized(self, enabled: bool) -> None:
        """False: backwards accumulate locally (`no_sync`), and the next synchronised round communicates the sum; events
        are local."""
    def watch_outputs(self, outputs: Sequence[torch.Tensor], is_training: bool) -> None:
        """Has the backward that reaches one of these non-leaf tensors complete the round when it ends; ranks in different
        modes get an error instead."""
    def finish(self) -> None:
        """Completes the round that is open, if there is one; raises what it failed with."""
    def set_betas(self, betas: Sequence[float]) -> None:
        """How much of each moment a new gradient leaves from now on."""
    def stop(self, timeout_s: float) -> None:
        """Ends rounds by a timer when all ranks have asked for it. Idempotent."""
    def resume(self) -> None:
        """Lets them go on when all ranks have asked for it. Idempotent."""
    def stay_stopped(self) -> None:
        """Has those that have begun on no rank wait for `resume`."""
    sums: bool
    """Whether gradients become the ranks' sum, and not their mean."""
    is_averaging: bool
    """Whether rounds by a timer go on, or will with the first forward pass."""
    may_differ: bool
    """Whether what is communicated may differ between ranks from one round to the next."""
    steps: int
    """That the trigger has counted."""
    interval: int
    """Of the trigger, in steps."""
    tensors_are_equal: bool
    """Whether all ranks hold the same, now that a step has ended."""
    needs_backward: bool
    """Whether a step now is in step with the other ranks only if a backward has been since the last one."""
    def take_over(self, before: Model) -> None:
        """Knows of the gradients what an earlier model knew of the same parameters, which may be detached: which are
        results of rounds."""
    def local_gradients(self) -> list[str]:
        """Names of parameters that have a gradient which no round has communicated: of local backwards, or any one
        where weights are communicated."""
    def mark_local(self, names: Sequence[str]) -> None:
        """Has the next round communicate the gradients of these parameters also if no backward makes more of them."""
    def check_local_gradients(self, names: Sequence[str]) -> None:
        """Raises FailedPrecondition if local backwards have added to one that is a sum of the ranks already."""
    def check_parameters(self) -> list[str]:
        """Names of parameters that were cast, moved, resized or whose hook is gone since registration."""
    def check_round(self) -> None:
        """Raises what an earlier round failed with, if anything; rounds by a timer raise it where tensors are claimed."""
    def buckets(self) -> list[list[str]]:
        """Tensor names by bucket, in the order in which buckets are launched."""
    def state(self) -> State:
        """A copy of what the algorithm remembers. Raises FailedPrecondition while a round is open."""
    def flat_buckets(self) -> list[tuple[torch.Tensor, list[tuple[str, int]]]]:
        """The memory in which gradients lie one after the other, by bucket, and the first element of each parameter's;
        nothing where none do. It is the buckets', and of use until the plan changes.
        """
    def tune(self, csv_path: str) -> None:
        """Tunes the bucket size from the next round on, on all ranks alike. Raises Unsupported where it cannot be.

        Args:
          csv_path: where rank 0 of the group adds what it measured; "": nowhere.
        """
    def end_tuning(self) -> None:
        """Stays with the plan in force, on all ranks at the same round. Idempotent."""
    is_tuning: bool
    def statistics(self) -> dict[str, float]:
        """rounds, wait_seconds (trainer blocked on communication), bytes, sent_bytes, copied_bytes, plan_generation,
        bucket_size_bytes.
        """
    def detach(self, timeout_s: float = 0) -> None:
        """Removes the hooks and frees the buckets; gradients that lie in them get memory of their own. A round that is open comes to nothing, rounds by a timer are stopped in agreement with the
        other ranks if that can be had in time. Idempotent.
        """

class AveragingControl:
    """The lock of the weights that an averaging beside training changes, and the wish to stop it."""

    def __init__(self) -> None: ...
    def lock_weight(self, timeout_s: float) -> None:
        """Raises FailedPrecondition if this thread holds it; DeadlineExceeded."""
    def unlock_weight(self) -> None:
        """Raises FailedPrecondition if nobody holds it."""
    def held_by_this_thread(self) -> bool: ...
    def abort(self) -> None: ...
    def reset(self) -> None: ...
    def get_status(self) -> bool:
        """Whether it goes on, as the ranks agreed in the last round."""

class UserOperation:
    """One operation of a bucket that a user has chosen; it keeps the tensors alive."""

    def __init__(
        self,
        name: str,  # for errors
        algorithm: str = "",  # a name of algorithms() whose stages do the work
        options: Mapping[str, str] = ...,
        function: Callable[[], str | None] | None = None,  # else: called on the thread that runs the operations; what
        # went wrong, or None
        peer_weight: torch.Tensor | None = None,  # takes the outcome, in the bucket's place
        replicas: Mapping[str, torch.Tensor] = ...,  # state, by the name of the stage's buffer
        control: AveragingControl | None = None,  # of an averaging whose outcome is added to the live tensors
    ) -> None: ...

class UserModel:
    """Buckets that a user has chosen, of any tensors, and their rounds."""

    def __init__(
        self,
        backend: Backend,
        ranks: Sequence[int],
        name: str,
        tensors: Sequence[tuple[str, torch.dtype, int, int]],  # name, dtype, elements, bucket; buckets in order
        operations: Sequence[Sequence[UserOperation]],  # by bucket, in the order in which they run
        timeout_s: float,
    ) -> None:
        """Plans the buckets and agrees on them, and on their operations, with all ranks. Collective over `ranks`."""
    def memory(self, slot: int, count: int) -> torch.Tensor:
        """`count` elements from where tensor number `slot` lies in its bucket; those of a bucket have no gaps."""
    def mark_ready(self, slot: int, live: torch.Tensor | None = None) -> None:
        """The elements are final, in memory(slot, ...); `live`: the tensor itself, if that is only a copy."""
    def mark_unused(self, slot: int) -> None:
        """As mark_ready, for a tensor that this rank did not use."""
    def finish_round(self) -> None:
        """Waits for the round; what is not marked counts as unused zeros."""
    def post(self, event: Event, optimizer: int, is_given: bool, given_count: int, is_synchronized: bool) -> bool:
        """Of steps; whether the event completes one of the model's: see Model.post."""
    def used_by_any(self, slot: int) -> bool:
        """Of the last round; True where that is not known."""
    def abort(self, reason: str) -> None:
        """Ends this round and all later ones, on all ranks."""
    def statistics(self) -> dict[str, float]:
        """rounds, wait_seconds, bytes, sent_bytes, plan_generation."""
    def detach(self) -> None:
        """Frees the buckets, but for memory that tensors lie in. Idempotent."""

class ProcessGroup:
    """What `process_group` makes: a `torch._C._distributed_c10d.Backend` with what gloo's has beside that."""

    @property
    def options(self) -> Any: ...
    def _set_default_timeout(self, timeout: datetime.timedelta) -> None: ...

def process_group(
    backend: Backend,
    ranks: Sequence[int],  # of the backend's world
    name: str,
    backend_name: str,  # "pelton", or that of the backend whose part it plays
    timeout_s: float,  # of each operation that brings none of its own
    on_closed: Callable[[], None],  # called once, by the first shutdown()
) -> ProcessGroup:
    """Opens a communicator of its own; collective over `ranks`."""

class Store(dist.Store):  # type: ignore[name-defined,misc]  # exported on a condition
    """The job's key-value service as a store of torch.distributed."""

    def __init__(self, backend: Backend, timeout_s: float) -> None: ...

def algorithms() -> list[tuple[str, str]]:
    """(name, summary) of every registered algorithm."""

class AlgorithmDescription(TypedDict):
    """What the runtime says of an algorithm; of each option the name, default, values and meaning."""

    summary: str
    subject: str
    bytes_sent: str
    dtypes: list[str]
    ranks_agree: bool
    takes_device_memory: bool
    options: list[tuple[str, str, str, str]]

def describe_algorithm(name: str) -> AlgorithmDescription:
    """Raises:
    LookupError: there is none of that name; the text lists the names.
    """

def bind_address(interface: str) -> str:
    """The numeric address of a network interface, or of a numeric address; in brackets if IPv6.

    Raises:
      NotFound: no such interface.
      InvalidArgument: a wildcard.
    """

def check_algorithm(name: str, options: dict[str, str]) -> None:
    """Raises:
    InvalidArgument: an option is unknown, or its value does not fit; the text lists what there is.
    """

class Graphs:
    """A graph over ranks for each step, made by `make_graphs` or `one_peer_of`.

    Threads: any. Owns: what it is made from.
    """

    size: int
    period: int  # the graph of step + period is that of step; 0: it never repeats
    def at(self, step: int) -> tuple[list[float], list[tuple[int, int, float]]]:
        """The ranks' own weights, and (source, destination, weight) of each edge."""

def make_graphs(name: str, size: int, options: dict[str, str]) -> Graphs:
    """Raises:
    NotFound: there is none of that name; the text lists the names.
    InvalidArgument: an option is unknown or does not fit, or there is no such graph of so many ranks.
    """

def one_peer_of(own: list[float], edges: list[tuple[int, int, float]]) -> Graphs:
    """Each step one of the neighbours that a rank has in a graph.

    Raises:
      InvalidArgument: it is no graph; the text names the edge.
    """

def graphs() -> list[tuple[str, str, list[tuple[str, str, str, str]]]]:
    """(name, summary, options) of every registered graph; of an option name, default, values and meaning."""

def schedules(kind: str, world_size: int) -> list[str]:
    """Names of the schedules that can run a collective between hosts.

    Raises: InvalidArgument: there is no such collective.
    """

def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor in memory that the ranks of this host reach directly."""

def set_gradient_allocator(enabled: bool | None) -> None:
    """Whether backward passes allocate gradients of 64 KiB and more in shared memory; None: within one host."""

def begin_shared_allocation() -> None:
    """Opens a scope in which large CPU tensors come from shared memory once the allocator was enabled. Counted."""

def end_shared_allocation() -> None:
    """Closes the scope that the matching begin opened."""

def set_log_sink(sink: Callable[[int, str], object] | None) -> None:
    """Has the runtime's lines go to a function, with their level of `logging`; None: to standard error.

    Threads: `sink` is called by any, one at a time.
    """

def set_stall_seconds(seconds: float) -> None:
    """After how long a wait is told of first; 0: never."""

def is_forked_child() -> bool:
    """Whether this process was forked from one that had joined a job: nothing of the runtime works in it."""
