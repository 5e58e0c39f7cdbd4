"""Buckets: the tensors that are communicated together, and what is done with them, in Bagua's terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pelton import _C
from pelton._training._bucket_operations import (
    AsynchronousModelAverage,
    DecentralizedSynchronous,
    Operation,
    codec_named,
    text_of,
)
from pelton._training.tensor import BaguaTensor, dense_strides, effective_tensor, registration_of
from pelton.errors import InvalidArgument

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup

_PADDING = "bagua_padding_tensor_bucket_"


class BackendBucket:
    """A bucket as the runtime registers it. Threads: the trainer's. Owns: the list of its operations."""

    def __init__(self, bucket: BaguaBucket) -> None:
        self.bucket = bucket
        self.operations: list[Operation] = []

    @property
    def name(self) -> str:
        """The bucket's name."""
        return self.bucket.name


class BaguaBucket:
    """Registered tensors that are communicated together, and operations that run when all of them are ready.

    Threads: the trainer's. Owns: the operations, and the padding; not the tensors.
    """

    def __init__(
        self, tensors: Sequence[BaguaTensor | torch.Tensor], name: str, flatten: bool, alignment: int = 1
    ) -> None:
        """Args:
        tensors: registered ones of one model, dtype and device.
        name: unique in the model.
        flatten: have the effective tensors lie one after the other in memory, so that nothing is copied.
        alignment: a padding tensor of zeros is added, so that this divides the number of elements.

        Raises:
          InvalidArgument: the tensors do not go together; the text names the first that does not.
        """
        self.tensors: list[Any] = list(tensors)
        self.name = name
        self.flatten = flatten
        self.padding_tensor: Any = None
        self.backend_tensor: torch.Tensor | None = None
        self._check_tensors()
        self._pad(alignment)
        if flatten:
            self._flatten()
        self.backend_bucket = BackendBucket(self)

    @property
    def all_tensors(self) -> list[Any]:
        """The tensors and, last, the padding if there is one."""
        return [*self.tensors, *([self.padding_tensor] if self.padding_tensor is not None else [])]

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """The names of the tensors, without the padding's."""
        return tuple(tensor.bagua_tensor_name for tensor in self.tensors)

    @property
    def is_apart(self) -> bool:
        """Whether the runtime works on a copy: an operation leaves the tensors themselves as they are."""
        return any(not operation.works_in_bucket for operation in self.backend_bucket.operations)

    @property
    def takes_result(self) -> bool:
        """Whether an operation changes the bucket's tensors."""
        return any(operation.works_in_bucket for operation in self.backend_bucket.operations)

    def flattened_tensor(self) -> torch.Tensor:
        """A new tensor with the elements of all effective tensors, and of the padding, one after the other.

        Shape: [elements of the bucket]; in the order in which they lie in the memory of a flattened bucket. Zeros
        for a tensor that has no effective one now.
        """
        flat = torch.zeros(self._count(), dtype=self._first().dtype, device=self._first().device)
        self.write_to(flat)
        return flat

    def check_flatten(self) -> bool:
        """Whether the effective tensors, and the padding, lie one after the other in memory."""
        end = None
        for tensor in self.all_tensors:
            effective = effective_tensor(tensor)
            if effective is None or effective.stride() != dense_strides(effective):
                return False
            if effective.numel() == 0:
                continue
            if end is not None and effective.data_ptr() != end:
                return False
            end = effective.data_ptr() + effective.nbytes
        return True

    def bytes(self) -> int:
        """The size of the bucket with its padding."""
        return self._count() * self._first().element_size()

    def clear_ops(self) -> BaguaBucket:
        """Forgets the operations; returns the bucket."""
        self.backend_bucket.operations.clear()
        return self

    def append_python_op(
        self, python_function: Callable[[str], None], group: BaguaProcessGroup | None = None
    ) -> BaguaBucket:
        """Appends a function. It is called with the bucket's name, on a thread that calls the model's functions alone.

        It finds in the effective tensors what the operations before it left, and what it leaves there the next ones
        find. An exception ends the round, here and on the other ranks; the trainer gets that exception. A round that
        fails for another reason waits a second for the function: what it changes later stays changed.

        Args:
          python_function: what to call. It may block, until the round's deadline, and communicate, but for the tensors
            and rounds of its own model.
          group: accepted; the function chooses for itself whom it talks to.

        Returns:
          The bucket.
        """
        name = getattr(python_function, "__qualname__", type(python_function).__name__)
        return self._append(Operation(f"Python operation '{name}'", function=python_function))

    def append_centralized_synchronous_op(
        self,
        hierarchical: bool = False,
        average: bool = True,
        scattergather: bool = False,
        compression: str | None = None,
        group: BaguaProcessGroup | None = None,
    ) -> BaguaBucket:
        """Appends the mean, or sum, over the ranks.

        Args:
          hierarchical: first inside each host, then between the hosts.
          average: divide the sum by the number of ranks.
          scattergather: each rank reduces one part and hands it to the others.
          compression: "MinMaxUInt8", or a codec of Pelton's by name; None for none. Implies `scattergather`.
          group: the ranks that take part: those of the model.

        Returns:
          The bucket.

        Raises:
          InvalidArgument, when the bucket is registered: no such codec.
        """
        options = {"average": text_of(average), "hierarchical": text_of(hierarchical)}
        if compression is not None:
            options["codec"] = codec_named(compression)
        elif scattergather:
            options["scatter_gather"] = "true"
        algorithm = "gradient_allreduce" if compression is None else "bytegrad"
        return self._append(Operation("centralized operation", algorithm, options, group=group))

    def append_decentralized_synchronous_op(
        self,
        peer_weight: BaguaTensor | torch.Tensor,
        hierarchical: bool = True,
        peer_selection_mode: str = "all",
        group: BaguaProcessGroup | None = None,
    ) -> DecentralizedSynchronous:
        """Appends an average of the bucket with peers', which goes to `peer_weight`; the bucket stays as it is.

        Args:
          peer_weight: takes the average; `flattened_tensor()` makes one of its size.
          hierarchical: hosts, not ranks, are the peers.
          peer_selection_mode: "all" or "shift_one". What the coordinator chooses it chooses for a whole model: take
            `DecentralizedAlgorithm`.
          group: the ranks that take part: those of the model.

        Returns:
          The operation: its `copy_back_peer_weight(bucket)` copies the average to the tensors.

        Raises:
          InvalidArgument: `peer_weight` has not the bucket's size or dtype; when the bucket is registered: another
            mode.
        """
        target = self._state(peer_weight, "peer_weight")
        options = {"hierarchical": text_of(hierarchical), "peer_selection_mode": peer_selection_mode}
        self._append(Operation("decentralized operation", "decentralized", options, group=group, peer_weight=target))
        return DecentralizedSynchronous(target)

    def append_low_precision_decentralized_synchronous_op(
        self,
        weight: BaguaTensor | torch.Tensor,
        left_peer_weight: BaguaTensor | torch.Tensor,
        right_peer_weight: BaguaTensor | torch.Tensor,
        hierarchical: bool = True,
        compression: str = "MinMaxUInt8",
        group: BaguaProcessGroup | None = None,
    ) -> BaguaBucket:
        """Appends an average with both neighbours on a ring, who are told in few bits what has changed.

        Args:
          weight: what the neighbours believe this rank's weights to be; updated, as the next two.
          left_peer_weight: the same of the left neighbour's.
          right_peer_weight: the same of the right neighbour's.
          hierarchical: hosts, not ranks, are on the ring.
          compression: "MinMaxUInt8", or a codec of Pelton's by name.
          group: the ranks that take part: those of the model.

        Returns:
          The bucket.

        Raises:
          InvalidArgument: one of the three has not the bucket's size or dtype.
        """
        replicas = {
            "weight": self._state(weight, "weight"),
            "left": self._state(left_peer_weight, "left_peer_weight"),
            "right": self._state(right_peer_weight, "right_peer_weight"),
        }
        options = {"hierarchical": text_of(hierarchical), "codec": codec_named(compression)}
        name = "low precision decentralized operation"
        return self._append(Operation(name, "low_precision_decentralized", options, group=group, replicas=replicas))

    def append_asynchronous_model_average_op(
        self, peer_selection_mode: str, group: BaguaProcessGroup | None = None
    ) -> AsynchronousModelAverage:
        """Appends an average of the ranks' weights, taken beside training: w += average - w when it began.

        Args:
          peer_selection_mode: "all".
          group: the ranks that take part: those of the model.

        Returns:
          The operation, with the lock that keeps it from changing weights: `lock_weight()`, `unlock_weight()`;
          `abort()`, `reset()` and `get_status()` end and resume it, by agreement of all ranks.

        Raises:
          InvalidArgument: another mode.
        """
        if peer_selection_mode != "all":
            raise InvalidArgument(f"peer_selection_mode={peer_selection_mode!r}: must be 'all'")
        control = _C.AveragingControl()
        self._append(Operation("asynchronous average", "async_model_average", group=group, control=control))
        return AsynchronousModelAverage(control)

    def write_to(self, flat: torch.Tensor) -> None:
        """Copies the effective tensors into a flat tensor of the bucket's size."""
        with torch.no_grad():
            for tensor, view in zip(self.all_tensors, self.views_of(flat)):
                effective = effective_tensor(tensor)
                if effective is not None:
                    view.copy_(effective)

    def read_from(self, flat: torch.Tensor) -> None:
        """Copies a flat tensor of the bucket's size into the effective tensors."""
        for tensor, view in zip(self.all_tensors, self.views_of(flat)):
            effective = effective_tensor(tensor)
            if effective is not None:
                effective.detach().copy_(view)

    def views_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a flat tensor of the bucket's size, in the shapes of the effective tensors."""
        views, offset = [], 0
        for tensor in self.all_tensors:
            shape = self._shape(tensor)
            views.append(flat.as_strided(shape.shape, dense_strides(shape), flat.storage_offset() + offset))
            offset += shape.numel()
        return views

    def _append(self, operation: Operation) -> BaguaBucket:
        self.backend_bucket.operations.append(operation)
        return self

    def _check_tensors(self) -> None:
        if not self.tensors:
            raise InvalidArgument(f"bucket '{self.name}': it has no tensors")
        first = self.tensors[0]
        for tensor in self.tensors:
            registration = registration_of(tensor)
            shape, model = self._shape(tensor), first.bagua_module_name
            problem = None
            if registration.module_name != model:
                problem = f"is of model '{registration.module_name}', not of '{model}'"
            elif (shape.dtype, shape.device) != (self._first().dtype, self._first().device):
                problem = f"is of {shape.dtype} on {shape.device}, '{first.bagua_tensor_name}' of "
                problem += f"{self._first().dtype} on {self._first().device}"
            elif shape.layout != torch.strided:
                problem = f"has layout {shape.layout}; only dense tensors can be communicated"
            if problem is not None:
                raise InvalidArgument(f"bucket '{self.name}': tensor '{registration.name}' {problem}")

    def _pad(self, alignment: int) -> None:
        if not isinstance(alignment, int) or alignment < 1:
            raise InvalidArgument(f"bucket '{self.name}': alignment={alignment!r}: must be a number of elements")
        missing = -self._count() % alignment
        if missing > 0:
            first = self._first()
            padding: Any = torch.zeros(missing, dtype=first.dtype, device=first.device)
            model = self.tensors[0].bagua_module_name
            self.padding_tensor = padding.to_bagua_tensor(_PADDING + self.name, model)

    def _flatten(self) -> None:
        if self.check_flatten():
            return
        self.lie_in(self.flattened_tensor())

    def lie_in(self, flat: torch.Tensor) -> None:
        """Has the effective tensors lie in a flat tensor of the bucket's size; their elements become what is there."""
        self.backend_tensor = flat
        with torch.no_grad():
            for tensor, view in zip(self.all_tensors, self.views_of(flat)):
                effective = effective_tensor(tensor)
                if effective is not None:
                    effective.set_(view)  # type: ignore[call-overload]

    def _shape(self, tensor: Any) -> torch.Tensor:
        """The effective tensor or, where there is none now, the proxy: they are of one shape."""
        effective = effective_tensor(tensor)
        shape: torch.Tensor = tensor if effective is None else effective
        return shape

    def _first(self) -> torch.Tensor:
        return self._shape(self.tensors[0])

    def _count(self) -> int:
        return sum(self._shape(tensor).numel() for tensor in self.all_tensors)

    def _state(self, tensor: Any, argument: str) -> torch.Tensor:
        """The memory of a tensor that an operation keeps beside the bucket."""
        effective = self._shape(tensor) if tensor.is_bagua_tensor() else tensor
        wanted = (self._count(), self._first().dtype)
        if (effective.numel(), effective.dtype) != wanted or not effective.is_contiguous():
            raise InvalidArgument(
                f"bucket '{self.name}': {argument} has {effective.numel()} elements of {effective.dtype}; it must be "
                f"contiguous and have the bucket's {wanted[0]} elements of {wanted[1]}"
            )
        memory: torch.Tensor = effective.detach()
        return memory
