"""BlueFog's windows: a tensor of each rank, and a buffer for each in-neighbor that only that one writes.

On one host a put, accumulate, get or update waits for no other rank, unless it asks for a mutex. To and from a rank on
another host it waits for the network and a thread that serves windows there, and not for what that rank's program does.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Union

import torch

from pelton import _log
from pelton._training._objects import text_of_rank0
from pelton._training._state_broadcast import agree, agreeing
from pelton.bluefog._errors import WrongType, waits_named
from pelton.bluefog.torch._calls import check_tensor
from pelton.bluefog.torch._window_table import (
    Get,
    Weights,
    Window,
    Windows,
    Write,
    arguments_of,
    future_of,
    later,
    make_all,
    names,
    note_change,
    set_uses_p,
    settle,
    span,
    update_weights,
    uses_p,
    window_of,
    windows,
)
from pelton.errors import FailedPrecondition, InvalidArgument

__all__ = [
    "get_current_created_window_names",
    "get_win_version",
    "neighbor_win_accumulate",
    "neighbor_win_accumulate_nonblocking",
    "neighbor_win_get",
    "neighbor_win_get_nonblocking",
    "neighbor_win_put",
    "neighbor_win_put_nonblocking",
    "turn_off_win_ops_with_associated_p",
    "turn_on_win_ops_with_associated_p",
    "win_accumulate",
    "win_accumulate_async",
    "win_accumulate_nonblocking",
    "win_associated_p",
    "win_create",
    "win_free",
    "win_get",
    "win_get_async",
    "win_get_nonblocking",
    "win_lock",
    "win_mutex",
    "win_poll",
    "win_put",
    "win_put_async",
    "win_put_nonblocking",
    "win_sync",
    "win_sync_then_collect",
    "win_update",
    "win_update_then_collect",
    "win_wait",
]


def win_create(tensor: torch.Tensor, name: str, zero_init: bool = False) -> bool:
    """Makes a window. Collective. The window's memory is the tensor itself: what changes it changes all views of it.

    A tensor of a GPU, with all its views, moves to memory of the host that the GPU has mapped, and stays there: others
    read what is in it, without a copy and without its rank's doing, and its kernels work over the bus.

    Args:
      tensor: contiguous, of one shape and dtype on all ranks; one of a GPU is no part of other memory.
      name: of the window.
      zero_init: whether the buffers of the in-neighbors begin with 0; else with this rank's own tensor.

    Returns:
      False: there is a window of that name already.

    Raises:
      InvalidArgument: ranks' names, shapes, dtypes or topologies differ; the text is the same on all ranks.
    """
    check_tensor("win_create", tensor)
    if not isinstance(name, str):
        raise WrongType(f"win_create: name={name!r}: must be a string")
    living = windows()
    if name in living.by_name:
        return False
    topology = living.world.topology
    if topology is None:
        raise FailedPrecondition("win_create: there is no topology; call set_topology() first")
    sources, destinations = sorted(topology.in_neighbors), sorted(topology.out_neighbors)
    settle(tensor)  # its memory may be given back when it moves
    native = living.native.create(name, tensor.detach(), sources, destinations, zero_init)
    living.by_name[name] = Window(name, native, tensor, sources, destinations, living.background)
    living.world.live_windows.add(name)
    return True


def win_free(name: str | None = None) -> bool:
    """Ends a window when all ranks have called. Collective.

    Args:
      name: of the window; None for all.

    Raises:
      NoSuchWindow: there is no window of that name.
      InvalidArgument: another rank has none of that name, or frees another one; none is freed then.
    """
    living = windows()
    mine = names() if name is None else [name]
    living.background.submit(lambda: None).result()  # what is under way comes first
    with waits_named("win_free"):
        _agree_to_free(living, mine)
        living.native.barrier()
    for each in mine:
        del living.by_name[each]
        living.world.live_windows.discard(each)
    return True


def _agree_to_free(living: Windows, mine: list[str]) -> None:
    communicator = living.world.session.world_communicator
    with agreeing(communicator):
        for each in mine:
            window_of(each)
    text = json.dumps(mine).encode()
    theirs = text_of_rank0(communicator, text)
    differs = f"win_free: rank 0 frees {theirs.decode()} and rank {communicator.rank()} {text.decode()}"
    agree(communicator, InvalidArgument(f"{differs}; all ranks must free the same") if theirs != text else None)


def get_current_created_window_names() -> list[str]:
    """The names of the windows, sorted."""
    return names()


def _run(operation: Write | Get) -> bool:
    """Does it on this thread, after what has been given to the background."""
    windows().background.await_submitted()
    operation.run()
    return True


def win_put(
    tensor: torch.Tensor,
    name: str,
    self_weight: Union[float, Weights, None] = None,
    dst_weights: Union[Weights, bool, None] = None,
    require_mutex: bool = False,
) -> bool:
    """Replaces this rank's buffer at each destination by weight * tensor; then the tensor becomes self_weight * tensor.

    Args:
      tensor: of the window's shape and dtype; it need not be the window's.
      name: of the window.
      self_weight: 1 if None. A mapping here is dst_weights, as in BlueFog before 0.2.2.
      dst_weights: by out-neighbor; all of them, with weight 1, if None.
      require_mutex: whether to hold the mutex of each edge meanwhile.

    Raises:
      NoSuchWindow: there is no window of that name.
      MovedTensor: the window's own tensor has other memory, or another shape, than at win_create.
      InvalidArgument: a rank is no out-neighbor, or the tensor is another one than the window's.
      PeerLost: a destination has ended; the others were served.
      DeadlineExceeded: a mutex was not given back in time, and the text names who holds it; or a rank on another host
        has not answered, and its edges fail from then on.
    """
    return _run(Write(window_of(name), tensor, arguments_of(self_weight, dst_weights, require_mutex), adds=False))


def win_put_nonblocking(
    tensor: torch.Tensor,
    name: str,
    self_weight: Union[float, Weights, None] = None,
    dst_weights: Union[Weights, bool, None] = None,
    require_mutex: bool = False,
) -> int:
    """The same as `win_put`, in the background; a handle for `win_wait`.

    Args:
      tensor: not to be changed until it is done.
      name: of the window.
      self_weight: as `win_put`.
      dst_weights: as `win_put`.
      require_mutex: as `win_put`.
    """
    write = Write(window_of(name), tensor, arguments_of(self_weight, dst_weights, require_mutex), adds=False)
    return later(write.run)


def put_all_nonblocking(tensors: Mapping[str, torch.Tensor], dst_weights: Weights | None) -> int:
    """`win_put` of many tensors by one call of the background thread, because to wake it up takes longer than a put.

    Args:
      tensors: by their windows' names; not to be changed until it is done.
      dst_weights: as `win_put`.
    """
    arguments = arguments_of(None, dst_weights, False)
    writes = [Write(window_of(name), tensor, arguments, adds=False) for name, tensor in tensors.items()]
    return later(functools.partial(make_all, [write.run for write in writes]))


def win_accumulate(
    tensor: torch.Tensor,
    name: str,
    self_weight: Union[float, Weights, None] = None,
    dst_weights: Union[Weights, bool, None] = None,
    require_mutex: bool = False,
) -> bool:
    """As `win_put`, but adds weight * tensor to the buffers. Their versions stay.

    Args:
      tensor: of the window's shape and dtype.
      name: of the window.
      self_weight: as `win_put`.
      dst_weights: as `win_put`.
      require_mutex: as `win_put`; sums are exact without it, too.
    """
    return _run(Write(window_of(name), tensor, arguments_of(self_weight, dst_weights, require_mutex), adds=True))


def win_accumulate_nonblocking(
    tensor: torch.Tensor,
    name: str,
    self_weight: Union[float, Weights, None] = None,
    dst_weights: Union[Weights, bool, None] = None,
    require_mutex: bool = False,
) -> int:
    """The same as `win_accumulate`, in the background; a handle for `win_wait`.

    Args:
      tensor: not to be changed until it is done.
      name: of the window.
      self_weight: as `win_put`.
      dst_weights: as `win_put`.
      require_mutex: as `win_accumulate`.
    """
    write = Write(window_of(name), tensor, arguments_of(self_weight, dst_weights, require_mutex), adds=True)
    return later(write.run)


def win_get(name: str, src_weights: Weights | None = None, require_mutex: bool = False) -> bool:
    """Replaces the buffer of each source by weight * the source's tensor, as that is now.

    Args:
      name: of the window.
      src_weights: by in-neighbor; all of them, with weight 1, if None.
      require_mutex: whether to hold the mutex at each source meanwhile. A tensor that its rank changes outside of
        `win_mutex(name, for_self=True)` may be read in the middle of the change; so it may in an update that has
        `require_mutex`, which holds those of its own sources.

    Raises:
      NoSuchWindow: there is no window of that name.
      MovedTensor: as win_put.
      InvalidArgument: a rank is no in-neighbor.
      PeerLost: a source has ended; the others were read.
      DeadlineExceeded: as win_put.
    """
    return _run(Get(window_of(name), src_weights, require_mutex))


def win_get_nonblocking(name: str, src_weights: Weights | None = None, require_mutex: bool = False) -> int:
    """The same as `win_get`, in the background; a handle for `win_wait`.

    Args:
      name: of the window.
      src_weights: as `win_get`.
      require_mutex: as `win_get`.
    """
    return later(Get(window_of(name), src_weights, require_mutex).run)


def win_update(
    name: str,
    self_weight: float | None = None,
    neighbor_weights: Weights | None = None,
    reset: bool = False,
    clone: bool = False,
    require_mutex: bool = False,
) -> torch.Tensor:
    """Makes the tensor self_weight * tensor + the sum of weight * buffer, in place. Local.

    Args:
      name: of the window.
      self_weight: with neighbor_weights, or neither: then the topology's column if that is weighted, else the mean.
      neighbor_weights: by in-neighbor; those that are missing take no part.
      reset: whether the buffers that take part become 0 afterwards.
      clone: whether to leave the tensor as it is, and to give a new one.
      require_mutex: whether to hold the mutexes of the edges that take part meanwhile.

    Returns:
      The window's own tensor, the same object that `win_create` was given; or the new one.

    Raises:
      NoSuchWindow: there is no window of that name.
      MovedTensor: as win_put.
      InvalidArgument: one of the weights is missing, or a rank is no in-neighbor.
      DeadlineExceeded: a mutex was not given back in time.
    """
    window = window_of(name)
    own, pairs = update_weights(window, self_weight, neighbor_weights)
    window.check_memory()
    target = torch.empty_like(window.host, requires_grad=False) if clone else None
    with ExitStack() as held:
        held.enter_context(span(window, "WIN_SYNC_COMPUTE_AVERAGE"))
        if require_mutex:
            for rank, _ in pairs:
                held.enter_context(window.mutex(rank, of_own=True))
        with window.owner:
            window.check_memory()
            settle(window.tensor)
            window.native.update(own, pairs, reset, uses_p(), target)
            if target is None:
                note_change(window.tensor)
    return window.tensor if target is None else target.to(window.tensor.device)


def win_update_then_collect(name: str, require_mutex: bool = True) -> torch.Tensor:
    """Adds all buffers to the tensor, and resets them.

    Args:
      name: of the window.
      require_mutex: as `win_update`; nothing is lost without it, either.
    """
    return win_update(name, 1.0, dict.fromkeys(window_of(name).sources, 1.0), reset=True, require_mutex=require_mutex)


def win_poll(handle: int) -> bool:
    """Whether an operation in the background is done; False also for a handle that is none.

    Args:
      handle: what a non-blocking operation has given.
    """
    future = future_of(handle, forget=False)
    if future is None:
        _log.tell(logging.WARNING, f"bluefog: win_poll: {handle!r} is no handle, or was waited for already")
        return False
    return future.done()


def win_wait(handle: int) -> bool:
    """Waits for an operation in the background, once; False for a handle that is none.

    Args:
      handle: what a non-blocking operation has given.

    Raises:
      PeltonError: the operation's.
    """
    future = future_of(handle, forget=True)
    if future is None:
        _log.tell(logging.WARNING, f"bluefog: win_wait: {handle!r} is no handle, or was waited for already")
        return False
    future.result()
    return True


def get_win_version(name: str) -> dict[int, int]:
    """How often each in-neighbor has put, or was got from, since the last update.

    Args:
      name: of the window.
    """
    return dict(window_of(name).native.versions())


def win_associated_p(name: str) -> float:
    """This rank's p: what its tensor is to be divided by in push-sum.

    Args:
      name: of the window.
    """
    return window_of(name).native.p


def turn_on_win_ops_with_associated_p() -> None:
    """Has p take part in all operations from now on."""
    set_uses_p(True)


def turn_off_win_ops_with_associated_p() -> None:
    """Leaves p as it is in all operations from now on."""
    set_uses_p(False)


@contextmanager
def win_mutex(
    name: Union[str, Sequence[int], None] = None, for_self: bool = False, ranks: Sequence[int] | None = None
) -> Iterator[None]:
    """Holds the mutexes of edges for a `with` block, on one thread.

    Args:
      name: of the window. A list of ranks here, or nothing, means those ranks in all windows, as in BlueFog 0.2.0.
      for_self: of the edges from `ranks` to this rank, which its updates take; else of those from this rank to `ranks`.
      ranks: all out-neighbors if None, for both.

    Raises:
      NoSuchWindow: there is no window of that name.
      InvalidArgument: a rank is no neighbor.
      DeadlineExceeded: a mutex was not given back in time; the text names who holds it.
    """
    if isinstance(name, str):
        chosen = [window_of(name)]
    else:
        ranks = ranks if name is None else name
        chosen = [window_of(each) for each in names()]
    with ExitStack() as held:
        for window in chosen:
            for rank in sorted(set(window.destinations if ranks is None else ranks)):
                held.enter_context(window.mutex(rank, of_own=for_self))
        yield


@contextmanager
def win_lock(name: str) -> Iterator[None]:
    """Holds the mutexes of all edges to this rank for a `with` block: nobody writes meanwhile who asks for a mutex.

    Args:
      name: of the window.
    """
    with win_mutex(name, for_self=True, ranks=window_of(name).sources):
        yield


neighbor_win_put = win_put
neighbor_win_put_nonblocking = win_put_nonblocking
neighbor_win_accumulate = win_accumulate
neighbor_win_accumulate_nonblocking = win_accumulate_nonblocking
neighbor_win_get = win_get
neighbor_win_get_nonblocking = win_get_nonblocking
# BlueFog 0.2.0's names.
win_put_async = win_put_nonblocking
win_accumulate_async = win_accumulate_nonblocking
win_get_async = win_get_nonblocking
win_sync = win_update


def win_sync_then_collect(name: str) -> torch.Tensor:
    """As `win_update_then_collect`, by its name of BlueFog 0.2.0.

    Args:
      name: of the window.
    """
    return win_update_then_collect(name)
