"""Where a fused optimizer keeps tensors: one after the other in flat memory, weights, gradients and states alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_ALIGNMENT_BYTES = 64  # as torch's own memory: products of matrices may round otherwise where it is another


def place_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Which memory a tensor lies in, and at which element."""
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())


def may_move(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is all its own, so that nobody looks for it there once it has moved."""
    is_shared = tensor.device.type == "cpu" and tensor.untyped_storage().is_shared()
    return not is_shared and tensor.untyped_storage().nbytes() == tensor.nbytes


class Shelf:
    """The flat memory of some parameters of one dtype and device.

    Every tensor of a parameter begins at the same element of the flat tensor of its kind; gaps, at most 15 elements of
    four bytes long, belong to nobody and may be written to. Threads: the trainer's. Owns: the flat tensors.
    """

    def __init__(self, members: Sequence[torch.Tensor], offsets: Sequence[int] | None = None) -> None:
        """Args:
        members: the parameters, none of them empty.
        offsets: where each begins, growing multiples of the alignment with room for what lies before; None: as close
          to each other as that allows.
        """
        self.members = list(members)
        self.offsets = [] if offsets is None else list(offsets)
        self.alignment = _ALIGNMENT_BYTES // members[0].element_size()
        self.size = self.offsets[-1] + members[-1].numel() if self.offsets else 0
        for member in members if offsets is None else ():
            self.offsets.append(self.size)
            self.size += -(-member.numel() // self.alignment) * self.alignment
        self.gradients: torch.Tensor | None = None  # a bucket's, in which each has the same offset
        self.numbers = {id(member): i for i, member in enumerate(self.members)}
        self._owned: dict[str, list[torch.Tensor]] = {}

    def holds(self, members: Sequence[torch.Tensor], offsets: Sequence[int] | None = None) -> bool:
        """Whether it was made for these, at these places if they matter."""
        is_same = len(members) == len(self.members) and all(a is b for a, b in zip(members, self.members))
        return is_same and (offsets is None or list(offsets) == self.offsets)

    def gradient_of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The part of the bucket that a parameter's gradient lies in; None if it lies elsewhere."""
        gradient, i = parameter.grad, self.numbers[id(parameter)]
        if gradient is None or self.gradients is None or gradient.dtype != self.gradients.dtype:
            return None
        part = self.gradients[self.offsets[i] : self.offsets[i] + parameter.numel()].view(parameter.shape)
        return part if part.data_ptr() == gradient.data_ptr() else None

    def owns(self, kind: str, storage: int) -> bool:
        """Whether a storage is one that it made, or was given, for a kind."""
        of_bucket = [self.gradients] if kind == "gradients" and self.gradients is not None else []
        flats = [*self._owned.get(kind, ()), *of_bucket]
        return any(flat.untyped_storage().data_ptr() == storage for flat in flats)

    def adopt(self, kind: str, flat: torch.Tensor) -> None:
        """Counts memory as its own whose gaps nobody uses: a state that was made for a run of members."""
        self._owned.setdefault(kind, []).append(flat)

    def lay_out(
        self, kind: str, tensors: Sequence[torch.Tensor | None], put: Callable[[int, torch.Tensor], None]
    ) -> None:
        """Brings tensors into its memory unless they lie there as they should.

        Args:
          kind: what they are: weights, gradients, or the name of a state.
          tensors: by member; None where there is none.
          put: called with the number of a member and its tensor's new place, which has the same values.
        """
        found = [(i, tensor) for i, tensor in enumerate(tensors) if tensor is not None]
        types = {(tensor.dtype, tensor.device) for _, tensor in found}
        if len(types) != 1 or self._is_laid_out(kind, found):
            return
        first = found[0][1]
        flat = self._flat(kind, first)
        for i, tensor in found:
            begin = self.offsets[i]
            home = flat[begin : begin + self.members[i].numel()].view(self.members[i].shape)
            if place_of(home) != place_of(tensor):
                home.copy_(tensor)
                put(i, home)

    def _is_laid_out(self, kind: str, found: Sequence[tuple[int, torch.Tensor]]) -> bool:
        """All in one storage of its own, each as far from the first as its place says."""
        places = [place_of(tensor) for _, tensor in found]
        storages = {storage for storage, _ in places}
        begins = {offset - self.offsets[i] for (i, _), (_, offset) in zip(found, places)}
        return len(storages) == 1 and len(begins) == 1 and self.owns(kind, places[0][0])

    def _flat(self, kind: str, example: torch.Tensor) -> torch.Tensor:
        """The flat tensor of a kind; a new one where there is none of all members, which is its only one then."""
        for flat in self._owned.get(kind, ()):
            if flat.numel() == self.size and flat.dtype == example.dtype:
                return flat
        flat = torch.zeros(self.size, dtype=example.dtype, device=example.device)
        self._owned[kind] = [flat]
        return flat
