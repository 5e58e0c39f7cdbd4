"""Tensors that are registered for communication: the methods that every `torch.Tensor` gets.

A registered tensor is a proxy. What is communicated is its *effective tensor*: the tensor itself or, where it was
registered with a getter, what that returns at each use, such as `lambda parameter: parameter.grad`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from pelton.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from pelton._training._model_backend import ModelBackend
    from pelton._training._user_rounds import UserRounds

Getter = Callable[[torch.Tensor], torch.Tensor | None]
Setter = Callable[[torch.Tensor, torch.Tensor | None], None]

_ATTRIBUTE = "_bagua_registration"


class Registration:
    """What is known of a registered tensor. Copies of the tensor (deepcopy, pickle) are plain ones, without it.

    Threads: the trainer's. Owns: the closures.
    """

    def __init__(self, name: str, module_name: str | None) -> None:
        self.name = name
        self.module_name = module_name
        self.getter: Getter | None = None
        self.setter: Setter | None = None
        self.place: tuple[weakref.ref[UserRounds], int] | None = None  # its slot, once its bucket is registered

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()


def _nothing() -> None:
    """What a registration becomes in a copy."""


class BackendTensor:
    """A registered tensor as the runtime sees it: each answer is of the effective tensor at that moment.

    Threads: the trainer's. Owns: nothing.
    """

    def __init__(self, proxy: torch.Tensor) -> None:
        self.proxy = proxy

    @property
    def name(self) -> str:
        """The name it was registered under."""
        return registration_of(self.proxy).name

    def data_ptr(self) -> int:
        """The address of its first element; 0 where there is no effective tensor."""
        effective = effective_tensor(self.proxy)
        return 0 if effective is None else effective.data_ptr()

    def num_elements(self) -> int:
        """The number of its elements."""
        effective = effective_tensor(self.proxy)
        return self.proxy.numel() if effective is None else effective.numel()

    def dtype(self) -> torch.dtype:
        """Its element type."""
        effective = effective_tensor(self.proxy)
        return self.proxy.dtype if effective is None else effective.dtype

    def device_id(self) -> int:
        """The number of its GPU; -1 on the CPU."""
        return self.proxy.device.index if self.proxy.device.type == "cuda" else -1


def registration_of(tensor: torch.Tensor) -> Registration:
    """What is known of a registered tensor.

    Raises:
      AttributeError: it is not registered.
    """
    registration = getattr(tensor, _ATTRIBUTE, None)
    if not isinstance(registration, Registration):
        raise AttributeError("the tensor is not registered; call ensure_bagua_tensor(name, module_name) first")
    return registration


def effective_tensor(tensor: torch.Tensor) -> torch.Tensor | None:
    """What is communicated for a registered tensor; None where its getter has nothing to give now.

    Raises:
      AttributeError: it is not registered.
      InvalidArgument: the getter gives something else.
    """
    registration = registration_of(tensor)
    if registration.getter is None:
        return tensor
    effective = registration.getter(tensor)
    if effective is not None and not isinstance(effective, torch.Tensor):
        raise InvalidArgument(f"tensor '{registration.name}': its getter gave a {type(effective).__name__}")
    return effective


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Its strides, or those of a copy of it if its elements lie apart in memory."""
    return torch.empty_like(tensor, device="meta").stride()


def forget(tensor: torch.Tensor) -> None:
    """Makes a registered tensor a plain one."""
    tensor.__dict__.pop(_ATTRIBUTE, None)


class BaguaTensor:
    """The methods that tensors get; never instantiated. Threads: the trainer's. Owns: nothing."""

    @property
    def bagua_tensor_name(self: Any) -> str:
        """The name it was registered under; "" if none was given."""
        return registration_of(self).name

    @property
    def bagua_module_name(self: Any) -> str | None:
        """The name of the model that it belongs to."""
        return registration_of(self).module_name

    @property
    def bagua_backend(self: Any) -> ModelBackend:
        """Its model's communication.

        Raises:
          NotFound: no model of that name is wrapped.
        """
        from pelton._training._model_backend import get_backend  # which imports the session

        return get_backend(str(registration_of(self).module_name))

    def is_bagua_tensor(self: Any) -> bool:
        """Whether it is registered."""
        return isinstance(getattr(self, _ATTRIBUTE, None), Registration)

    def ensure_bagua_tensor(
        self: Any,
        name: str | None = None,
        module_name: str | None = None,
        getter_closure: Getter | None = None,
        setter_closure: Setter | None = None,
    ) -> Any:
        """Registers the tensor, or gives a registered one new closures.

        Args:
          name: unique in its model.
          module_name: its model's `bagua_module_name`; needed to mark it ready.
          getter_closure: gives the effective tensor of the proxy; None: the proxy itself.
          setter_closure: makes another tensor the proxy's effective tensor; None: does nothing.

        Returns:
          The tensor itself.

        Raises:
          AssertionError: it is registered under another name, or for another model.
        """
        if not self.is_bagua_tensor():
            setattr(self, _ATTRIBUTE, Registration(name or "", module_name))
        registration = registration_of(self)
        for asked, known in ((name, registration.name), (module_name, registration.module_name)):
            if asked is not None and asked != known:
                raise AssertionError(f"the tensor is registered as '{known}' and cannot become '{asked}'")
        registration.getter = getter_closure
        registration.setter = setter_closure
        return self

    def to_bagua_tensor(
        self: Any,
        name: str | None = None,
        module_name: str | None = None,
        getter_closure: Getter | None = None,
        setter_closure: Setter | None = None,
    ) -> Any:
        """Registers a new tensor that shares this one's storage.

        Args:
          name: as that of `ensure_bagua_tensor`, like the others.
          module_name: its model's `bagua_module_name`.
          getter_closure: gives the effective tensor of the new one.
          setter_closure: makes another tensor its effective one.

        Returns:
          The new tensor, which autograd does not know.
        """
        return self.detach().ensure_bagua_tensor(name, module_name, getter_closure, setter_closure)

    def bagua_getter_closure(self: Any) -> torch.Tensor | None:
        """The effective tensor."""
        return effective_tensor(self)

    def bagua_setter_closure(self: Any, tensor: torch.Tensor | None) -> None:
        """Makes `tensor` the effective one, if it was registered with a setter."""
        registration = registration_of(self)
        if registration.setter is not None:
            registration.setter(self, tensor)

    def bagua_backend_tensor(self: Any) -> BackendTensor:
        """The tensor as the runtime sees it."""
        registration_of(self)
        return BackendTensor(self)

    def bagua_ensure_grad(self: Any) -> Any:
        """Gives a leaf tensor a gradient of zeros if it has none; returns the tensor.

        Raises:
          InvalidArgument: it is no leaf that requires a gradient.
        """
        if self.grad is None:
            if not (self.is_leaf and self.requires_grad):
                raise InvalidArgument("bagua_ensure_grad: the tensor is no leaf that requires a gradient")
            self.grad = torch.zeros_like(self, requires_grad=False)
        return self

    def bagua_mark_communication_ready(self: Any) -> None:
        """Says that the effective tensor is final; when all of its bucket are, the bucket's operations run.

        Raises:
          FailedPrecondition: its bucket is not registered.
          AlreadyExists: it was marked in this round, and others were not yet.
          PeltonError: what an earlier round failed with.
        """
        registration = registration_of(self)
        rounds = registration.place[0]() if registration.place is not None else None
        if registration.place is None or rounds is None:
            raise FailedPrecondition(f"tensor '{registration.name}' is in no registered bucket, so nothing awaits it")
        rounds.mark(registration.place[1])

    def bagua_mark_communication_ready_without_synchronization(self: Any) -> None:
        """The same: on the CPU there is nothing to be synchronised with."""
        self.bagua_mark_communication_ready()

    def bagua_set_storage(
        self: Any, storage: torch.UntypedStorage | torch.storage.TypedStorage, storage_offset: int = 0
    ) -> None:
        """Has the effective tensor lie in another storage; its elements become what is there.

        Args:
          storage: where it is to lie.
          storage_offset: its first element there. Units: elements.

        Raises:
          FailedPrecondition: there is no effective tensor.
        """
        effective = effective_tensor(self)
        if effective is None:
            raise FailedPrecondition(f"tensor '{registration_of(self).name}' has no effective tensor now")
        with torch.no_grad():
            effective.set_(storage, storage_offset, effective.shape, dense_strides(effective))


def install() -> None:
    """Puts the methods on every tensor, as `import pelton.torch_api` does. Idempotent."""
    for name, member in vars(BaguaTensor).items():
        if not name.startswith("__"):
            setattr(torch.Tensor, name, member)
