"""What a checkpoint keeps, as entries: of those that rank 0 has too, the other ranks keep only the ones that differ."""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from pelton._training._encoding import encode
from pelton.errors import InvalidArgument

# ("model", name), ("optimizer", i, "state", j), ("optimizer", i, "groups"), ("lr_scheduler", i)
Key = tuple[Any, ...]
Entries = dict[Key, Any]


def model_entries(state: Mapping[str, Any]) -> Entries:
    """Of a model's state_dict."""
    return {("model", name): value for name, value in state.items()}


def optimizer_entries(states: Sequence[Mapping[str, Any]]) -> Entries:
    """Of the state_dicts of optimizers."""
    entries: Entries = {}
    for i, state in enumerate(states):
        entries["optimizer", i, "groups"] = {key: value for key, value in state.items() if key != "state"}
        entries.update({("optimizer", i, "state", j): value for j, value in state["state"].items()})
    return entries


def scheduler_entries(states: Sequence[Mapping[str, Any]]) -> Entries:
    """Of the state_dicts of schedulers."""
    return {("lr_scheduler", i): state for i, state in enumerate(states)}


def model_state(entries: Entries, metadata: Any) -> OrderedDict[str, Any]:
    """The state_dict again. Args: metadata: what it carried beside its items, by which old versions are told."""
    state: OrderedDict[str, Any] = OrderedDict((key[1], value) for key, value in entries.items() if key[0] == "model")
    if metadata is not None:
        state._metadata = metadata  # type: ignore[attr-defined]
    return state


def optimizer_states(entries: Entries) -> list[dict[str, Any]]:
    """The state_dicts again."""
    states: list[dict[str, Any]] = []
    for key, value in entries.items():
        if key[0] == "optimizer" and key[2] == "groups":
            mine = {k[3]: v for k, v in entries.items() if k[:3] == ("optimizer", key[1], "state")}
            states.append({"state": mine, **value})
    return states


def scheduler_states(entries: Entries) -> list[dict[str, Any]]:
    """The state_dicts again."""
    return [value for key, value in entries.items() if key[0] == "lr_scheduler"]


def digests(entries: Entries) -> dict[Key, bytes]:
    """A number for each entry's content, equal where the content is."""
    return {key: _digest(value) for key, value in entries.items()}


def _digest(value: Any) -> bytes:
    tensors: list[torch.Tensor] = []
    try:
        form = encode(value, tensors, "entry")
    except InvalidArgument:
        return uuid.uuid4().bytes  # nothing says what it is equal to, so that each rank keeps its own
    found = hashlib.blake2b(json.dumps(form).encode(), digest_size=16)
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous()
        if flat.numel() > 0:
            found.update((ctypes.c_ubyte * flat.nbytes).from_address(flat.data_ptr()))
    return found.digest()


def own_of(entries: Entries, rank_0s: Mapping[Key, bytes]) -> tuple[Entries, list[Key]]:
    """What a rank keeps of its entries, and which of rank 0's it does not have.

    Args:
      entries: the rank's.
      rank_0s: digests of rank 0's.
    """
    mine = digests(entries)
    own = {key: value for key, value in entries.items() if rank_0s.get(key) != mine[key]}
    return own, [key for key in rank_0s if key not in mine]


def of_rank(entries: Entries, absent: Sequence[Key], own: Entries) -> Entries:
    """A rank's entries again.

    Args:
      entries: rank 0's.
      absent: which of those it does not have.
      own: what it has kept.
    """
    return {**{key: value for key, value in entries.items() if key not in set(absent)}, **own}


def are_same(values: Sequence[Any]) -> bool:
    """Whether all of them have one content."""
    return len({_digest(value) for value in values}) == 1


def means(everyones: Sequence[Entries]) -> Entries:
    """What a group of another size goes on with: of floating point tensors the mean over those ranks that have one,
    of everything else, of what has other shapes and of single numbers (they count) the first rank's.

    Args:
      everyones: by rank.
    """
    keys = {key: None for entries in everyones for key in entries}
    return {key: mean_of([entries[key] for entries in everyones if key in entries]) for key in keys}


def mean_of(values: Sequence[Any]) -> Any:
    """The same of one thing. Args: values: by rank, of those that have it."""
    if len(values) == 1 or all(value is values[0] for value in values) or are_same(values):
        return values[0]
    flattened = [_pytree.tree_flatten(value) for value in values]
    leaves, form = flattened[0]
    if any(other != form for _, other in flattened):
        return values[0]
    found = [_mean_leaf([mine[i] for mine, _ in flattened]) for i in range(len(leaves))]
    return _pytree.tree_unflatten(found, form)


def _mean_leaf(leaves: Sequence[Any]) -> Any:
    first = leaves[0]
    if not isinstance(first, torch.Tensor) or not first.is_floating_point() or first.dim() == 0:
        return first
    if any(not isinstance(leaf, torch.Tensor) or leaf.shape != first.shape for leaf in leaves):
        return first
    total = torch.zeros_like(first, dtype=torch.float64)
    for leaf in leaves:
        total += leaf
    return (total / len(leaves)).to(first.dtype)


def saved(value: Any, what: str) -> Any:
    """The value in the form in which it is written: tensors that are parts of larger memory (a bucket's) by themselves.

    Args:
      value: containers, plain values and tensors.
      what: its name in errors.

    Raises:
      InvalidArgument: it holds an object that could not be read again without running code of the file's.
    """
    skeleton = io.BytesIO()
    try:
        torch.save(_pytree.tree_map_only(torch.Tensor, lambda _: None, value), skeleton)
        skeleton.seek(0)
        torch.load(skeleton, weights_only=True)
    except Exception as error:
        lines = [line.strip() for line in str(error).split("\n")]
        reasons = [line for line in lines if "global" in line.lower() or "pickle" in line.lower()]
        raise InvalidArgument(
            f"{what}: holds more than tensors and plain values, and could not be loaded again: "
            f"{(reasons or [str(error)])[0]}. Make it numbers, texts, lists and dicts"
        ) from error
    written = _pytree.tree_map_only(torch.Tensor, _apart, value)
    metadata = getattr(value, "_metadata", None)
    if metadata is not None:
        written._metadata = metadata
    return written


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if plain.layout != torch.strided or plain.untyped_storage().nbytes() == plain.nbytes:
        return plain
    return plain.clone(memory_format=torch.contiguous_format)
