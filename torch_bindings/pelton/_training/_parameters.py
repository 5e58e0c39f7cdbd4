"""Which tensors of a model are communicated, under which names, and whether they are still the same objects."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from pelton._training._devices import check_device
from pelton.errors import FailedPrecondition, InvalidArgument

_IGNORE_LISTS = ("_bagua_params_and_buffers_to_ignore", "_ddp_params_and_buffers_to_ignore")

NamedTensors = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class SelectedTensors:
    """A model's tensors by what is done with them. Threads: a value. Owns: references to the tensors."""

    trainable: NamedTensors  # gradients are communicated
    frozen: NamedTensors  # only broadcast at the beginning
    buffers: NamedTensors  # the same
    left_out: frozenset[int]  # ids of expert and ignored tensors: each rank's own affair

    @property
    def all(self) -> NamedTensors:
        """What is broadcast at the beginning."""
        return self.trainable + self.frozen + self.buffers


def select(module: nn.Module) -> SelectedTensors:
    """Sorts a model's tensors, each once and under its first name.

    A shared tensor is left out if any of its names is ignored or an expert's. What was put into experts after they were
    made (weight_norm, adapters, a new `nn.Parameter`) is marked as theirs.

    Raises:
      InvalidArgument: an ignore list names something that does not exist; nothing is trainable; a tensor cannot be
        communicated. The text names it.
    """
    ignored = _ignored_ids(module)
    for part in module.modules():
        if getattr(type(part), "holds_experts", False):  # the class is imported only where a model has one
            cast(Any, part).mark()
    trainable: NamedTensors = []
    frozen: NamedTensors = []
    buffers: NamedTensors = []
    left_out = set(ignored)
    for name, parameter in module.named_parameters():
        if _is_left_out(parameter, ignored):
            left_out.add(id(parameter))
        else:
            (trainable if parameter.requires_grad else frozen).append((name, parameter))
    for name, buffer in module.named_buffers():
        if _is_left_out(buffer, ignored):
            left_out.add(id(buffer))
        else:
            buffers.append((name, buffer))
    selected = SelectedTensors(trainable, frozen, buffers, frozenset(left_out))
    _check_tensors(module, selected)
    return selected


def _is_left_out(tensor: torch.Tensor, ignored: set[int]) -> bool:
    return id(tensor) in ignored or bool(getattr(tensor, "expert", False))


def _ignored_ids(module: nn.Module) -> set[int]:
    by_name: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    by_name.update(module.named_buffers(remove_duplicate=False))
    ignored = set()
    for attribute in _IGNORE_LISTS:
        for name in getattr(module, attribute, ()):
            tensor = by_name.get(str(name).removeprefix("."))
            if tensor is None:
                raise InvalidArgument(f"{attribute} names {name!r}, but the model has no such parameter or buffer")
            ignored.add(id(tensor))
    return ignored


def _check_tensors(module: nn.Module, selected: SelectedTensors) -> None:
    for name, tensor in selected.all:
        kind = type(tensor)
        if hasattr(kind, "__tensor_flatten__"):  # torch's mark of subclasses that stand for other tensors
            raise InvalidArgument(
                f"'{name}' is a {kind.__name__}, which stands for other tensors (fully_shard and "
                "parallelize_module make such parameters): a wrapped model needs whole tensors on every rank. Leave "
                "that out and keep with_bagua, or train with torch.distributed's own, over Pelton's backend "
                '(init_process_group("pelton"))'
            )
        if nn.parameter.is_lazy(tensor):
            raise InvalidArgument(f"'{name}' has no shape yet; run a forward pass before with_bagua")
        if tensor.layout != torch.strided:
            raise InvalidArgument(f"'{name}' has layout {tensor.layout}; only dense tensors can be communicated")
        if tensor.numel() > 0 and any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())):
            # Only a rank that receives it would fail at it, and the others would wait for that one.
            raise InvalidArgument(
                f"'{name}' is expanded (shape {list(tensor.shape)}, strides {list(tensor.stride())}): several of its "
                "elements lie in one place, which cannot be written to. Give it memory of its own by clone() before "
                "with_bagua"
            )
    _check_layers(module)
    if not selected.trainable:
        raise InvalidArgument(
            f"{type(module).__name__} has no trainable parameter to communicate: every parameter is frozen, an "
            "expert's or ignored"
        )
    _check_devices(selected)
    _check_sparse_gradients(module, selected)
    _check_steps_after_backward(selected)


def _check_layers(module: nn.Module) -> None:
    """Refuses layers that communicate by themselves and could not, or that hold what is communicated."""
    for name, layer in module.named_modules():
        if type(layer).__module__.startswith("torch.distributed.fsdp"):
            raise InvalidArgument(
                f"'{name or 'the model'}' is a {type(layer).__name__}: its parameters are shards of others, and it "
                "reduces gradients itself. Leave that out, or leave out with_bagua"
            )
        if isinstance(layer, nn.SyncBatchNorm) and not (dist.is_available() and dist.is_initialized()):
            raise InvalidArgument(
                f"'{name or 'the model'}' is a SyncBatchNorm, which takes its statistics together with the other ranks "
                "only where torch.distributed is initialised, and silently from this rank's batch elsewhere. "
                "init_process_group initialises it unless torch_distributed=False or PELTON_TORCH_DISTRIBUTED=0 is "
                "given: leave that out on all ranks, or convert it by pelton.torch_api.contrib.SyncBatchNorm."
                "convert_sync_batchnorm, which needs no torch.distributed"
            )


def _check_devices(selected: SelectedTensors) -> None:
    first_name, first = selected.all[0]
    for name, tensor in selected.all:
        if tensor.device != first.device:
            raise InvalidArgument(
                f"the model is on mixed devices: '{first_name}' is on {first.device}, '{name}' on {tensor.device}"
            )
    check_device(first.device, f"'{first_name}' is on {first.device}")


def _check_sparse_gradients(module: nn.Module, selected: SelectedTensors) -> None:
    names = {id(tensor): name for name, tensor in selected.trainable}
    for layer in module.modules():
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse and id(layer.weight) in names:
            raise InvalidArgument(
                f"'{names[id(layer.weight)]}' has sparse gradients, which cannot be communicated; build its "
                f"{type(layer).__name__} with sparse=False, or ignore it"
            )


def _check_steps_after_backward(selected: SelectedTensors) -> None:
    for name, tensor in selected.trainable:
        if getattr(tensor, "_in_backward_optimizers", None):
            raise InvalidArgument(
                f"parameter '{name}' is stepped within backward (_apply_optimizer_in_backward), by each rank's own "
                "gradient before it is communicated; give with_bagua an optimizer that steps after backward() has "
                "returned"
            )


@contextlib.contextmanager
def thawed(named: NamedTensors) -> Iterator[None]:
    """Has parameters that are frozen for a while take hooks like the others: a registration outlives that."""
    frozen = [tensor for _, tensor in named if not tensor.requires_grad]
    for tensor in frozen:
        tensor.requires_grad_(True)
    try:
        yield
    finally:
        for tensor in frozen:
            tensor.requires_grad_(False)


class Snapshot:
    """Notices, in microseconds, that parameters or sub-modules were replaced, added, removed or thawed.

    A registered parameter that is frozen for a while is no change: it counts as unused meanwhile.
    Threads: the trainer's. Owns: references to the model's dictionaries and tensors.
    """

    def __init__(self, module: nn.Module, frozen: NamedTensors) -> None:
        """Args:
        module: the model.
        frozen: its parameters that are not registered because they need no gradient now.
        """
        found = [container for part in module.modules() for container in (part._parameters, part._modules)]
        self._containers: list[dict[str, Any]] = [container for container in found if isinstance(container, dict)]
        # Those of modules that torch.jit has made only look like dictionaries. They get and lose no members.
        self._foreign = [(c, [id(member) for _, member in c.items()]) for c in found if not isinstance(c, dict)]
        members = [(d, key, member) for d in self._containers for key, member in d.items()]
        self._dicts = [d for d, _, _ in members]
        self._keys = [key for _, key, _ in members]
        self._members = [member for _, _, member in members]
        self._sizes = [len(container) for container in self._containers]
        self._frozen = [tensor for _, tensor in frozen]

    def is_current(self) -> bool:
        """Whether the model still has exactly the members it had, and what was frozen still is."""
        return (
            all(map(operator.is_, map(dict.get, self._dicts, self._keys), self._members))
            and list(map(len, self._containers)) == self._sizes
            and all([id(member) for _, member in c.items()] == members for c, members in self._foreign)
            and not any(tensor.requires_grad for tensor in self._frozen)
        )


def check_gradients(
    module: nn.Module, selected: SelectedTensors, model: str, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Of a model that has changed since its tensors were selected, before a forward pass has noticed.

    Args:
      module: the model.
      selected: what was registered.
      model: its name in errors.
      optimizer: what is about to step; None: a backward pass has ended.

    Raises:
      FailedPrecondition: a parameter that is not registered has a gradient, so that nobody communicated it.
    """
    known = {id(tensor) for _, tensor in selected.trainable} | selected.left_out
    groups = optimizer.param_groups if optimizer is not None else [{"params": list(module.parameters())}]
    concerned = {id(parameter) for group in groups for parameter in group["params"]} - known
    for name, parameter in module.named_parameters():
        if id(parameter) not in concerned or parameter.grad is None or not parameter.requires_grad:
            continue
        raise FailedPrecondition(
            f"'{name}' of {model} has a gradient that was not communicated: it was replaced, added or thawed after "
            "wrapping, and the backward pass came by a method of the model, not by model(...), which would have "
            "registered it. Call model(...) on all ranks before, or with_bagua again"
        )


def parameter_ids(optimizer: Any) -> set[int]:
    """Ids of what it steps, also of an object that only wraps an optimizer; empty: it does not tell."""
    return {id(parameter) for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}


def names_without_optimizer(trainable: NamedTensors, optimizers: Iterable[torch.optim.Optimizer]) -> list[str]:
    """Names of the trainable parameters that none of the optimizers steps."""
    stepped = set[int]().union(*map(parameter_ids, optimizers))
    return [name for name, parameter in trainable if id(parameter) not in stepped]
