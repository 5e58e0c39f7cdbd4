"""The windows of a process by name, and how operations go about their edges, mutexes and handles."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Union

import torch

from pelton import _C
from pelton._training import _fork
from pelton.bluefog._errors import MovedTensor
from pelton.bluefog._timeline import now_us
from pelton.bluefog._world import World
from pelton.bluefog.torch._basics import active_world
from pelton.bluefog.torch._calls import check_tensor
from pelton.bluefog.torch._handles import NUMBERS
from pelton.errors import InvalidArgument, NotFound, PeltonError

Weights = Mapping[int, float]
Pairs = list[tuple[int, float]]
Arguments = tuple[float, Union[Weights, None], bool]  # own weight, of destinations, whether mutexes are held

_MOST_NAMES_SHOWN = 8
_MOMENT_S = 0.01  # long for taking a mutex that is free, short for whoever waits behind one that is not


class NoSuchWindow(NotFound, KeyError):
    """A window's name that `win_create` was not given, or that was freed since."""

    def __str__(self) -> str:
        return str(self.args[0])


class Window:
    """A window and what it was made with.

    Threads: any; those that write hold `writer`, and those that read its buffers, or change its tensor or p, `owner`.
    Who takes several takes mutexes first, then `writer`, then `owner`: nobody holds one of the two locks while it waits
    for a mutex, so nobody waits in a circle. Owns: the window.
    """

    def __init__(
        self,
        name: str,
        native: _C.Window,
        tensor: torch.Tensor,
        sources: list[int],
        destinations: list[int],
        background: Background,
    ) -> None:
        self._background = background
        self.name = name
        self.native = native
        self.tensor = tensor
        self.host = native.tensor  # the same memory as a tensor of the CPU
        self.sources = sources
        self.destinations = destinations
        self.writer = threading.Lock()
        self.owner = threading.Lock()
        self._made_with = _identity_of(tensor)

    def check_memory(self) -> None:
        """Whether the tensor is still what the window was made over.

        Raises:
          MovedTensor: it has other memory, or another shape or dtype.
        """
        if _identity_of(self.tensor) != self._made_with:
            raise MovedTensor(
                f"window '{self.name}': the memory of its tensor has been replaced or resized since win_create (by "
                ".data =, a module's to() or double(), resize_() or a fused optimizer); call win_free() on all ranks, "
                "and win_create() anew after that"
            )

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as the CPU reads it: of the window's own the same memory, of another one of a GPU a copy.

        So is one whose memory holds what it is not: a view that negates when it is read, as `x.conj().imag` is.

        Args:
          tensor: of the window's shape and dtype.
        """
        if tensor.is_cpu:
            return tensor.resolve_neg().contiguous()
        settle(tensor)
        if tensor.data_ptr() == self.tensor.data_ptr() and tensor.is_contiguous() and not tensor.is_neg():
            return self.host
        return tensor.cpu().resolve_neg().contiguous()

    @contextmanager
    def mutex(self, rank: int, of_own: bool) -> Iterator[None]:
        """Holds that of the edge to `rank`, or with `of_own` of that from it.

        Args:
          rank: at the other end.
          of_own: whether the edge's buffer is here.
        """
        with self._background.asking():
            self.native.lock(rank, of_own)
        try:
            yield
        finally:
            self.native.unlock(rank, of_own)


class Background:
    """The thread of non-blocking operations, which it does in the order in which they were given.

    Threads: any; `asking` is written by the background's alone. Owns: the thread.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pelton-windows", initializer=self._begin)
        self._thread: int | None = None
        self._submitting = threading.Lock()  # what is noted as the last is the last, whichever threads submit
        self._last: Future[None] | None = None
        self._asks = itertools.count()
        self._ask: int | None = None  # for a mutex, by number, while it waits

    def _begin(self) -> None:
        self._thread = threading.get_ident()

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Runs `call` after those that were submitted before.

        Args:
          call: what to run.
        """
        with self._submitting:
            submitted = self._last = self._pool.submit(call)
        return submitted

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within it a mutex is asked for, which on the background's thread `await_submitted` looks at."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._ask = next(self._asks)
        try:
            yield
        finally:
            self._ask = None

    def await_submitted(self) -> None:
        """What a program calls after operations in the background comes after them. Their errors are their handles'.

        Blocks: as they do; for some moments where one of them waits for a mutex, which may be this thread's to give
        back, or a peer's that waits for this thread.
        """
        last, seen = self._last, None
        while last is not None and not wait([last], timeout=_MOMENT_S).done:
            ask = self._ask
            if ask is not None and ask == seen:
                return
            seen = ask

    def end(self) -> None:
        """After the operations that are under way. Idempotent."""
        self._pool.shutdown()


def settle(tensor: torch.Tensor) -> None:
    """Waits for what a GPU has been given to do, if the tensor is one's: it is done with the tensor's memory then.

    Args:
      tensor: of any device.
    """
    if not tensor.is_cpu:
        torch.accelerator.synchronize(tensor.device)


def note_change(tensor: torch.Tensor) -> None:
    """Tells autograd that a tensor's memory was written to, as PyTorch's operations in place do.

    Args:
      tensor: or another one of the same memory, as `detach` gives.
    """
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def _identity_of(tensor: torch.Tensor) -> tuple[int, torch.Size, torch.dtype, bool]:
    return tensor.data_ptr(), tensor.shape, tensor.dtype, tensor.is_contiguous()


class Windows:
    """Those of one `init`, and their operations under way.

    Threads: any. Owns: the windows, and their background.
    """

    def __init__(self, world: World) -> None:
        """Collective."""
        self.world = world
        self.by_name: dict[str, Window] = {}
        self.native = _C.Windows(world.session.backend, range(world.size))
        self.background = Background()
        world.close_at_end(self)

    def close(self) -> None:
        """Ends the windows, after the operations that are under way. Idempotent."""
        self.background.end()
        self.by_name.clear()
        self.world.live_windows.clear()
        self.native.close()


class _State:
    """What the functions of this module share. Threads: as Python's dicts. Owns: all of it."""

    windows: Windows | None = None
    uses_p = False
    handles: ClassVar[dict[int, Future[None]]] = {}


def windows() -> Windows:
    """Those of the world; opened at the first use, which is collective."""
    world = active_world()
    if _State.windows is None or _State.windows.world is not world:
        _State.windows = Windows(world)
    return _State.windows


def names() -> list[str]:
    """The names of the windows, sorted."""
    world = active_world()
    return sorted(_State.windows.by_name) if _State.windows is not None and _State.windows.world is world else []


def window_of(name: str) -> Window:
    """The window of a name.

    Raises:
      NoSuchWindow: there is none.
    """
    living = _State.windows
    if living is not None and living.world is active_world() and name in living.by_name:
        return living.by_name[name]
    shown = ", ".join(names()[:_MOST_NAMES_SHOWN]) or "none"
    raise NoSuchWindow(f"name={name!r}: there is no window of that name; there are: {shown}")


def set_uses_p(uses_p: bool) -> None:
    """Whether p takes part in the operations that are called from now on."""
    _State.uses_p = uses_p


def uses_p() -> bool:
    """What `set_uses_p` was told last."""
    return _State.uses_p


@contextmanager
def span(window: Window, label: str) -> Iterator[None]:
    """Shows a `with` block in the timeline, if there is one, also under the names that BlueFog gives it.

    Args:
      window: whose row it is in.
      label: of the activity.
    """
    timeline = active_world().timeline
    if timeline is None:
        yield
        return
    begin_us = now_us()
    timeline.span(window.name, f"ENQUEUE_{label}", begin_us)
    yield
    timeline.span(window.name, label, begin_us)
    timeline.span(window.name, f"MPI_{label}", begin_us)


def pairs_of(weights: Weights | None, ranks: list[int], default: float, argument: str) -> Pairs:
    """Ranks and weights, ascending.

    Args:
      weights: as given; None for all `ranks` with `default`.
      ranks: that may be named.
      default: a weight.
      argument: its name.

    Raises:
      InvalidArgument: it is no mapping, or names another rank.
    """
    if weights is None:
        return [(rank, default) for rank in ranks]
    if not isinstance(weights, Mapping):
        raise InvalidArgument(f"{argument}={weights!r}: must map ranks to weights")
    strangers = sorted(set(weights) - set(ranks))
    if strangers:
        raise InvalidArgument(f"{argument}: rank(s) {strangers} are no neighbors in this window, which are {ranks}")
    return sorted((int(rank), float(weight)) for rank, weight in weights.items())


def arguments_of(self_weight: Any, dst_weights: Any, require_mutex: bool) -> Arguments:
    """Those of a put. BlueFog before 0.2.2 had (tensor, name, dst_weights, require_mutex): told by their types."""
    if isinstance(self_weight, Mapping):
        return 1.0, self_weight, require_mutex if dst_weights is None else bool(dst_weights)
    own = 1.0 if self_weight is None else float(self_weight)
    if isinstance(dst_weights, bool):
        return own, None, dst_weights
    return own, dst_weights, require_mutex


def update_weights(window: Window, own: float | None, weights: Weights | None) -> tuple[float, Pairs]:
    """Own and others' weights of an update.

    Raises:
      InvalidArgument: only one of the two is given, or a rank is no source.
    """
    if own is not None and weights is not None:
        return float(own), pairs_of(weights, window.sources, 0.0, "neighbor_weights")
    if own is not None or weights is not None:
        raise InvalidArgument(f"self_weight={own!r}, neighbor_weights={weights!r}: give both or none")
    topology = active_world().topology
    if topology is not None and topology.is_weighted:
        return topology.own, pairs_of(topology.sources, window.sources, 0.0, "topology")
    share = 1.0 / (len(window.sources) + 1)
    return share, pairs_of(None, window.sources, share, "")


class Write:
    """A put or an accumulate, with its arguments checked. Threads: one at a time. Owns: nothing."""

    def __init__(self, window: Window, tensor: torch.Tensor, arguments: Arguments, adds: bool) -> None:
        check_tensor("win_accumulate" if adds else "win_put", tensor)
        window.check_memory()
        _check_like(tensor, window)
        self._window = window
        self._tensor = tensor.detach()
        self._own, weights, self.takes_mutex = arguments
        self._pairs = pairs_of(weights, window.destinations, 1.0, "dst_weights")
        self._call = window.native.accumulate if adds else window.native.put
        self._label = "WIN_ACCUMULATE" if adds else "WIN_PUT"
        self._uses_p = uses_p()
        is_own = (
            tensor.layout == torch.strided
            and tensor.untyped_storage().data_ptr() == window.tensor.untyped_storage().data_ptr()
        )
        # An update between what is sent and the scaling by own would have its part scaled that was never sent.
        self._is_one_step = self._own != 1.0 and (is_own or self._uses_p)
        self._excludes_owner = is_own or self._is_one_step

    def run(self) -> None:
        """Does it. The tensor is scaled at the end, by whatever edges it went."""
        with span(self._window, self._label):
            if not self.takes_mutex:
                self._write(self._pairs, self._own)
            elif self._is_one_step:
                self._write_holding_all()
            else:
                self._write_one_by_one()

    def _write(self, pairs: Pairs, own: float) -> None:
        with ExitStack() as held:
            held.enter_context(self._window.writer)
            if self._excludes_owner:
                held.enter_context(self._window.owner)
            self._window.check_memory()
            flat = self._window.on_host(self._tensor)
            try:
                self._call(flat, pairs, own, self._uses_p)
            finally:
                if own != 1.0:
                    note_change(self._tensor)
                if own != 1.0 and flat.data_ptr() != self._tensor.data_ptr():
                    self._tensor.copy_(flat)

    def _write_one_by_one(self) -> None:
        try:
            each_edge(self._window, self._pairs, lambda pair: self._write([pair], 1.0))
        finally:
            self._write([], self._own)

    def _write_holding_all(self) -> None:
        """All mutexes are there before the locks are taken, in the ascending order in which everybody takes several."""
        failures: list[PeltonError] = []
        reached: Pairs = []
        with ExitStack() as held:
            for pair in self._pairs:
                try:
                    held.enter_context(self._window.mutex(pair[0], of_own=False))
                    reached.append(pair)
                except PeltonError as error:
                    failures.append(error)
            try:
                self._write(reached, self._own)
            except PeltonError as error:
                failures.append(error)
        _raise_as_one(failures)


def _check_like(tensor: torch.Tensor, window: Window) -> None:
    """Whether a tensor may be put into a window.

    Raises:
      InvalidArgument: its shape or dtype is another one.
    """
    own = window.tensor
    if tensor.shape != own.shape or tensor.dtype != own.dtype:
        raise InvalidArgument(
            f"tensor: is {list(tensor.shape)} of {_name_of(tensor.dtype)}; window '{window.name}' has "
            f"{list(own.shape)} of {_name_of(own.dtype)}; pass a tensor of the window's shape and dtype"
        )


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Get:
    """A get, with its arguments checked. Threads: one at a time. Owns: nothing."""

    def __init__(self, window: Window, weights: Weights | None, holds_mutex: bool) -> None:
        window.check_memory()
        self._window = window
        self._pairs = pairs_of(weights, window.sources, 1.0, "src_weights")
        self._holds_mutex = holds_mutex

    def run(self) -> None:
        """Does it."""
        with span(self._window, "WIN_GET"):
            if self._holds_mutex:
                each_edge(self._window, self._pairs, lambda pair: self._get([pair]))
            else:
                self._get(self._pairs)

    def _get(self, pairs: Pairs) -> None:
        with self._window.owner:
            self._window.check_memory()
            self._window.native.get(pairs)


def each_edge(window: Window, pairs: Pairs, call: Callable[[tuple[int, float]], None]) -> None:
    """One edge after the other, each under its mutex; all of them, also after one that fails.

    Args:
      window: of the edges.
      pairs: ranks and weights.
      call: what is done to one edge.

    Raises:
      PeltonError: of the first edge's kind; the text names all that failed.
    """

    def one(pair: tuple[int, float]) -> None:
        with window.mutex(pair[0], of_own=False):
            call(pair)

    make_all(functools.partial(one, pair) for pair in pairs)


def make_all(calls: Iterable[Callable[[], None]]) -> None:
    """Makes one call after the other; all of them, also after one that fails.

    Args:
      calls: to be made.

    Raises:
      PeltonError: of the first failure's kind; the text names all.
    """
    failures: list[PeltonError] = []
    for call in calls:
        try:
            call()
        except PeltonError as error:
            failures.append(error)
    _raise_as_one(failures)


def _raise_as_one(failures: list[PeltonError]) -> None:
    if failures:
        raise type(failures[0])("; ".join(str(error) for error in failures))


def later(call: Callable[[], None]) -> int:
    """Runs `call` in the background; a handle.

    Args:
      call: what to run.
    """
    number = next(NUMBERS)
    _State.handles[number] = windows().background.submit(call)
    return number


def future_of(handle: int, forget: bool) -> Future[None] | None:
    """What runs under a handle; None: nothing.

    Args:
      handle: what `later` has given.
      forget: whether it is asked for the last time.
    """
    return _State.handles.pop(handle, None) if forget else _State.handles.get(handle)


def _forget_in_child() -> None:
    _State.windows = None
    _State.handles.clear()


_fork.forget_in_child(_forget_in_child)
