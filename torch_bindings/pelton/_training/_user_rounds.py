"""The rounds of buckets that a user has chosen: from the first tensor that is ready to results in all of them."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from pelton import _C
from pelton._training import _session
from pelton._training._bucket_operations import Operation
from pelton._training.bucket import BackendBucket, BaguaBucket
from pelton._training.communication import BaguaProcessGroup
from pelton._training.tensor import effective_tensor, registration_of
from pelton.errors import AlreadyExists, FailedPrecondition, InvalidArgument, PeltonError


class Slot:
    """One tensor of a registered bucket, and its place in the runtime's memory.

    A flattened bucket's tensors lie there themselves. Of others, and of those that an operation leaves as they are,
    the runtime has a copy. Threads: the trainer's. Owns: nothing; the view keeps the memory alive.
    """

    def __init__(self, bucket: BaguaBucket, proxy: torch.Tensor, view: torch.Tensor) -> None:
        self.name = registration_of(proxy).name
        self.is_padding = proxy is bucket.padding_tensor
        self.is_dirty = False  # only this rank has accumulated into it since the last round
        self._proxy = proxy
        self._view = view
        self._takes_result = bucket.takes_result
        self._lives_here = bucket.flatten and not bucket.is_apart
        self._had_none = False
        self._kept: torch.Tensor | None = None
        self._before: torch.Tensor | None = None  # of the round that is open, see keep
        self._spare: torch.Tensor | None = None
        self.copied_bytes = 0

    def is_gradient(self) -> bool:
        """Whether it is the gradient of its proxy that is communicated."""
        effective = effective_tensor(self._proxy)
        return effective is None or effective is self._proxy.grad

    @property
    def is_local(self) -> bool:
        """Whether it holds what only this rank has accumulated."""
        return self.is_dirty and effective_tensor(self._proxy) is not None

    def keep(self) -> None:
        """Before a round: weights that operations work on in place must survive one that fails (COMMIT-1). Gradients
        need not: they come anew.
        """
        effective = effective_tensor(self._proxy)
        if self.is_padding or self.is_gradient() or not self._takes_result or effective is None:
            return
        if self._spare is None or (self._spare.shape, self._spare.dtype) != (effective.shape, effective.dtype):
            self._spare = torch.empty_like(effective, requires_grad=False)
        self._before = self._spare.copy_(effective.detach())

    def put_back(self) -> None:
        """After a round that failed: the tensor is what it was before. A function that is still at it may change it."""
        effective, before = effective_tensor(self._proxy), self._before
        self._before = None
        if before is not None and effective is not None:
            effective.detach().copy_(before)

    def bring(self) -> torch.Tensor | None:
        """Brings the effective tensor to the runtime's memory; returns it if the runtime has only a copy.

        Raises:
          InvalidArgument: its shape or dtype is not what was registered.
        """
        effective = effective_tensor(self._proxy)
        if effective is None:
            self._give_zeros()
            return None
        self._check(effective)
        if not self._is_here(effective):
            with torch.no_grad():
                self._view.copy_(effective)
                if self._lives_here and not _has_graph(effective):
                    effective.set_(self._view)  # type: ignore[call-overload]
            self.copied_bytes += self._view.nbytes
        return None if self._is_here(effective) else effective.detach()

    def bring_unused(self) -> None:
        """The same for a gradient that no backward pass has touched; it comes back if no other rank's has."""
        effective = effective_tensor(self._proxy)
        self._kept = None if effective is None else effective.detach().clone()
        self.bring()

    def show(self) -> None:
        """Before a function of the user's: the effective tensor holds what the operations so far have left."""
        effective = effective_tensor(self._proxy)
        if effective is not None and not self._is_here(effective) and self._takes_result:
            effective.detach().copy_(self._view)

    @property
    def is_unused(self) -> bool:
        """Whether this rank has only zeros to contribute, or a gradient that no backward pass has touched."""
        return self._had_none or self._kept is not None

    def collect(self, used_by_any: bool) -> None:
        """After the round: the effective tensor becomes the result, or stays what it was if no rank used it."""
        kept, had_none = self._kept, self._had_none
        self._kept, self._before, self._had_none, self.is_dirty = None, None, False, False
        effective = effective_tensor(self._proxy)
        if had_none and not used_by_any:
            self._proxy.bagua_setter_closure(None)  # type: ignore[attr-defined]
        elif effective is None:
            self._missing()
        elif kept is not None and not used_by_any:
            effective.detach().copy_(kept)
        elif self._takes_result and not self._is_here(effective):
            effective.detach().copy_(self._view)

    def release(self) -> None:
        """Gives the effective tensor memory of its own if it lies in the runtime's."""
        effective = effective_tensor(self._proxy)
        if effective is not None and effective.numel() > 0 and self._is_here(effective):
            with torch.no_grad():
                effective.set_(effective.detach().clone())  # type: ignore[call-overload]

    def _give_zeros(self) -> None:
        """A gradient that is not there counts as zeros; functions of the user's find it there meanwhile."""
        self._view.zero_()
        self._had_none = True
        zeros = self._view if self._lives_here else self._view.clone()
        self._proxy.bagua_setter_closure(zeros)  # type: ignore[attr-defined]

    def _missing(self) -> None:
        raise FailedPrecondition(
            f"tensor '{self.name}' has no effective tensor that could take the result, and its setter makes none"
        )

    def _check(self, effective: torch.Tensor) -> None:
        wanted = (self._view.shape, self._view.dtype)
        if (effective.shape, effective.dtype) != wanted or effective.layout != torch.strided:
            raise InvalidArgument(
                f"tensor '{self.name}' is {list(effective.shape)} of {effective.dtype} with layout {effective.layout}, "
                f"but was registered as {list(wanted[0])} of {wanted[1]}"
            )

    def _is_here(self, effective: torch.Tensor) -> bool:
        return effective.data_ptr() == self._view.data_ptr() and effective.stride() == self._view.stride()


def _has_graph(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is not None or (tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter))


class UserRounds:
    """Buckets that are registered with the runtime. Threads: one at a time.

    Owns: the runtime's model. Tensors know it by weak references, as functions do that the runtime calls.
    """

    def __init__(
        self, group: BaguaProcessGroup, model_name: str, buckets: Iterable[BackendBucket | BaguaBucket]
    ) -> None:
        """Registers the buckets, to be run in that order. Collective over the group.

        Raises:
          InvalidArgument: the buckets or their operations cannot be served, or differ between ranks.
          NotFound: an operation that this version does not have.
        """
        self.buckets: list[BaguaBucket] = [
            bucket.bucket if isinstance(bucket, BackendBucket) else bucket for bucket in buckets
        ]
        self._group = group
        self._failure: BaseException | None = None
        self._raised: BaseException | None = None  # by a function, on the thread that ran it
        self._calling_thread: int | None = None  # that is in a function
        self._marked: set[int] = set()
        self._slots: list[Slot] = []
        self._slots_of: list[list[Slot]] = []  # by bucket
        self._functions: dict[tuple[int, int], Operation] = {}  # by bucket, and place in it
        self._check_buckets()
        session = _session.current()
        self._rank = session.backend.rank
        self._model = _C.UserModel(
            session.backend,
            group.ranks,
            model_name,
            [_described(tensor, i) for i, bucket in enumerate(self.buckets) for tensor in bucket.all_tensors],
            [self._operations(i, bucket) for i, bucket in enumerate(self.buckets)],
            session.timeout_s,
        )
        for bucket in self.buckets:
            self._bind(bucket)

    @property
    def is_open(self) -> bool:
        """Whether a tensor was marked ready in this round."""
        return bool(self._marked)

    @property
    def is_complete(self) -> bool:
        """Whether all were."""
        return len(self._marked) == len(self._slots)

    def slot_of(self, tensor: torch.Tensor) -> Slot | None:
        """The slot of a registered tensor; None if it is in none of the buckets."""
        if not tensor.is_bagua_tensor():  # type: ignore[attr-defined]
            return None
        place = registration_of(tensor).place
        return self._slots[place[1]] if place is not None and place[0]() is self else None

    def mark(self, index: int) -> None:
        """The effective tensor of a slot is final. A round of which all slots are marked is completed first.

        Raises:
          AlreadyExists: the slot is marked in this round, and others are not.
          PeltonError: what an earlier round failed with.
        """
        self.check()
        slot = self._slots[index]
        if index in self._marked:
            if not self.is_complete:
                raise AlreadyExists(f"tensor '{slot.name}' is marked ready for the second time in a round")
            self.finish()
        if not self._marked:
            self._mark_paddings()
        slot.keep()
        live = slot.bring()
        self._marked.add(index)
        self._model.mark_ready(index, live)

    def finish(self) -> int:
        """Marks the rest as it is, and waits until the round's results are in the tensors.

        Returns:
          The number of buckets; 0 where no tensor was marked.

        Raises:
          PeltonError: what the round failed with; the exception itself that a function of the user's raised.
        """
        self.check()
        if not self._marked:
            return 0
        for index, slot in enumerate(self._slots):
            if index not in self._marked:
                self._mark_rest(index, slot)
        try:
            self._model.finish_round()
        except PeltonError as error:
            self._failure = self._raised or error
            self._put_back()
            raise self._failure from None
        self._marked.clear()
        for index, slot in enumerate(self._slots):
            slot.collect(not slot.is_unused or self._model.used_by_any(index))
        return len(self.buckets)

    def post(self, event: _C.Event, optimizer: int, is_given: bool, given_count: int, is_synchronized: bool) -> bool:
        """Tells the runtime of an optimizer's step; whether that completes a step of the model's."""
        return self._model.post(event, optimizer, is_given, given_count, is_synchronized)

    def check(self) -> None:
        """Raises what an earlier round failed with, or that this is a call of a function which the round waits for."""
        if self._failure is not None:
            raise self._failure
        if self._calling_thread == threading.get_ident():
            raise FailedPrecondition(
                "a Python operation marks a tensor of its own model, or waits for its round, which ends only after "
                "the operation has returned; leave both to the training loop"
            )

    def abort(self, error: BaseException, text: str) -> None:
        """Ends this round and all later ones on all ranks; `error` is this rank's."""
        if self._failure is None:
            self._failure = error
            self._model.abort(text)
            if self._marked:
                self._drain()

    def statistics(self) -> dict[str, float]:
        """As those of a runtime's model."""
        counts: dict[str, float] = self._model.statistics()
        counts["copied_bytes"] = float(sum(slot.copied_bytes for slot in self._slots))
        return counts

    def detach(self) -> None:
        """Frees the buckets; tensors that lie in them get memory of their own. Idempotent."""
        for bucket in self.buckets:
            for tensor in bucket.all_tensors:
                slot = self.slot_of(tensor)
                if slot is not None:
                    slot.release()
                    registration_of(tensor).place = None
        self._failure = self._failure or FailedPrecondition(
            "the model was detached, or wrapped anew, so that these buckets are communicated no more"
        )
        self._model.detach()

    def _check_buckets(self) -> None:
        if not self.buckets:
            raise InvalidArgument("there are no buckets to be registered")
        names: set[str] = set()
        for bucket in self.buckets:
            if bucket.name in names:
                raise InvalidArgument(f"two buckets are named '{bucket.name}'")
            names.add(bucket.name)
            for operation in bucket.backend_bucket.operations:
                ranks = operation.group.ranks if operation.group is not None else self._group.ranks
                if ranks != self._group.ranks:
                    raise InvalidArgument(
                        f"bucket '{bucket.name}': {operation.name} is of a group of ranks {ranks}, the model of one of "
                        f"{self._group.ranks}; they must be the same"
                    )

    def _operations(self, number: int, bucket: BaguaBucket) -> list[_C.UserOperation]:
        return [
            _C.UserOperation(
                f"{operation.name} of bucket '{bucket.name}'",
                operation.algorithm,
                operation.options,
                self._function(number, place, operation) if operation.function is not None else None,
                operation.peer_weight,
                operation.replicas,
                operation.control,
            )
            for place, operation in enumerate(bucket.backend_bucket.operations)
        ]

    def _function(self, number: int, place: int, operation: Operation) -> Callable[[], str | None]:
        """What the runtime calls. It must not keep this object alive, which keeps the runtime's."""
        self._functions[number, place] = operation
        return functools.partial(_call, weakref.ref(self), number, place)

    def _bind(self, bucket: BaguaBucket) -> None:
        first = len(self._slots)
        flat = self._model.memory(first, bucket.bytes() // bucket.tensors[0].element_size())
        bucket.write_to(flat)
        slots: list[Slot] = []
        for tensor, view in zip(bucket.all_tensors, bucket.views_of(flat)):
            registration_of(tensor).place = (weakref.ref(self), len(self._slots) + len(slots))
            slots.append(Slot(bucket, tensor, view))
        self._slots += slots
        self._slots_of.append(slots)
        if bucket.flatten and not bucket.is_apart:
            bucket.lie_in(flat)

    def _mark_paddings(self) -> None:
        for index, slot in enumerate(self._slots):
            if slot.is_padding:
                self._marked.add(index)
                self._model.mark_ready(index, slot.bring())

    def _drain(self) -> None:
        """Waits, after an abort, until nobody works on the buckets, and puts back what was there before the round."""
        with contextlib.suppress(PeltonError):
            for index in range(len(self._slots)):
                if index not in self._marked:
                    self._model.mark_unused(index)  # as it is: its bucket fails like the others
            self._model.finish_round()
        self._put_back()

    def _put_back(self) -> None:
        for slot in self._slots:
            slot.put_back()

    def _mark_rest(self, index: int, slot: Slot) -> None:
        self._marked.add(index)
        if slot.is_gradient() and not slot.is_local:
            slot.bring_unused()
            self._model.mark_unused(index)
        else:
            slot.keep()
            self._model.mark_ready(index, slot.bring())

    def run(self, number: int, place: int) -> str | None:
        """Calls a function of the user's, on the thread for such calls.

        Returns:
          What went wrong, for the other ranks: the exception is this rank's trainer's.
        """
        bucket, operation = self.buckets[number], self._functions[number, place]
        assert operation.function is not None
        self._calling_thread = threading.get_ident()
        try:
            for slot in self._slots_of[number]:
                slot.show()
            operation.function(bucket.name)
            if self._failure is not None:
                return "the round has ended"  # the tensors are the trainer's again
            for slot in self._slots_of[number]:
                slot.bring()
        except BaseException as error:
            self._raised = error
            where = f"rank {self._rank}: {operation.name} of bucket '{bucket.name}'"
            return f"{where} raised {type(error).__name__}: {error}"
        finally:
            self._calling_thread = None
        return None


def _call(this: weakref.ref[UserRounds], number: int, place: int) -> str | None:
    rounds = this()
    return rounds.run(number, place) if rounds is not None else "the buckets are gone"


def _described(tensor: Any, bucket: int) -> tuple[str, torch.dtype, int, int]:
    effective = effective_tensor(tensor)
    shape: torch.Tensor = tensor if effective is None else effective
    return registration_of(tensor).name, shape.dtype, shape.numel(), bucket
