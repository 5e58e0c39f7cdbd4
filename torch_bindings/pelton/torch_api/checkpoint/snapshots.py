"""Snapshots of training in memory that outlives the ranks, for `pelton run --max-restarts`."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from pelton.errors import FailedPrecondition, InvalidArgument, Unsupported
from pelton.torch_api._encoding import decode, encode
from pelton.torch_api.checkpoint._buffers import SnapshotBuffer, inherited_buffers
from pelton.torch_api.checkpoint._ranks import Ranks, wrapped_parts
from pelton.torch_api.checkpoint.checkpointing import AnyOptimizer, _continue_algorithm, _listed, _state_of

MOST_EXTRA_BYTES = 1 << 20
_NONE = -1


class Snapshots:
    """The last two snapshots of this rank: weights, buffers, optimizers, the algorithm, and the CPU's random state.

    They lie in memory of the launcher, `pelton run --max-restarts N`; under any other nothing is kept, and `restore`
    finds nothing. Threads: the trainer's. Owns: the mapping of that memory.
    """

    def __init__(self, model: nn.Module, optimizer: AnyOptimizer = None, every: int = 1) -> None:
        """Args:
          model: wrapped.
          optimizer: the model's, or a list of them.
          every: only steps that it divides are kept. With an algorithm whose ranks exchange something every n steps
            it must be a multiple of n, and those steps the ones that end with the exchange.

        Raises:
          InvalidArgument: `every` is not positive.
        """
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise InvalidArgument(f"every={every!r}: must be a whole number, 1 or more")
        self._model = model
        self._optimizers = _listed(optimizer)
        self._every = every
        self._buffers = inherited_buffers()

    def keep(self, step: int, extra: bytes = b"") -> None:
        """Takes a snapshot, after the optimizer's step and before the next forward pass. Not collective.

        A rank that dies within it leaves the snapshot before.

        Args:
          step: how many steps are done; every rank keeps the same ones.
          extra: what the script wants back, such as the position in its data; at most 1 MiB.

        Raises:
          InvalidArgument: `step` or `extra` is out of range, or the state holds more than tensors and plain values.
          Unsupported: the model's weights are averaged beside training, so that no moment has a state of its own.
          OSError: there is not enough memory.
        """
        if not isinstance(step, int) or isinstance(step, bool) or step < 1:
            raise InvalidArgument(f"step={step!r}: must be a whole number, 1 or more")
        if len(extra) > MOST_EXTRA_BYTES:
            raise InvalidArgument(f"extra has {len(extra)} bytes; at most {MOST_EXTRA_BYTES} are kept")
        if not self._buffers or step % self._every:
            return
        tensors: list[torch.Tensor] = []
        text = json.dumps(self._described(extra, tensors)).encode()
        oldest = min(self._buffers, key=lambda buffer: buffer.sequence)
        oldest.write(max(buffer.sequence for buffer in self._buffers) + 1, step, text, tensors)

    def restore(self) -> tuple[int, bytes]:
        """Goes back to the newest snapshot that every rank holds. Collective over the model's group.

        To be called once model and optimizers are made and the model is wrapped.

        Returns:
          Its step, and what the script has left with it; 0 and nothing where a rank holds none.

        Raises:
          InvalidArgument: it is that of another model, here or on the rank that the text names.
          FailedPrecondition: each rank holds some, but no step is held by all.
        """
        wrapped = wrapped_parts(self._model)
        ranks = Ranks(wrapped)
        step = self._newest_common(ranks)
        for buffer in self._buffers:
            if buffer.sequence and buffer.step > step:
                buffer.clear()  # the other ranks' of that step may come out differently
        if step == 0:
            return 0, b""
        value = ranks.together(lambda: self._read(step))
        ranks.together(lambda: self._apply(value))
        for part, inner in wrapped.items():
            _continue_algorithm(inner, value["algorithms"].get(part))
        torch.set_rng_state(value["random"])
        return step, value["extra"]

    def _described(self, extra: bytes, tensors: list[torch.Tensor]) -> Any:
        wrapped = wrapped_parts(self._model)
        if any(inner._rounds.is_averaging for inner in wrapped.values()):
            raise Unsupported("Snapshots.keep: the algorithm averages weights beside training; use save_checkpoint")
        value = {
            "model": dict(self._model.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "algorithms": {name: _state_of(inner) for name, inner in wrapped.items()},
            "random": torch.get_rng_state(),
            "extra": bytes(extra),
        }
        return encode(value, tensors, "snapshot")

    def _newest_common(self, ranks: Ranks) -> int:
        held = [buffer.step for buffer in self._buffers if buffer.sequence]
        mine = torch.tensor([*held, _NONE, _NONE][:2], dtype=torch.int64)
        everyones = mine.reshape(1, 2).clone()
        if ranks.size > 1:
            everyones = torch.zeros(ranks.size, 2, dtype=torch.int64)
            ranks.communicator.allgather(mine, everyones)
        steps = [{step for step in row if step != _NONE} for row in everyones.tolist()]
        common = set.intersection(*steps)
        if not common and all(steps):
            texts = (f"rank {rank} steps {sorted(held)}" for rank, held in enumerate(steps))
            raise FailedPrecondition(
                f"no step is held by all ranks ({', '.join(texts)}): with an algorithm whose ranks exchange something "
                "every n steps give every=n to Snapshots, or go on from a checkpoint"
            )
        return max(common, default=0)

    def _read(self, step: int) -> dict[str, Any]:
        buffer = next(buffer for buffer in self._buffers if buffer.sequence and buffer.step == step)
        value = _value_of(buffer)
        ours, theirs = _shapes(self._model.state_dict()), _shapes(value["model"])
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise InvalidArgument(
                    f"the snapshot of step {step} is of another model: {name} is {theirs.get(name, 'missing')} there "
                    f"and {ours.get(name, 'missing')} here; start the job anew to begin without it"
                )
        if len(value["optimizers"]) != len(self._optimizers):
            raise InvalidArgument(
                f"the snapshot of step {step} has {len(value['optimizers'])} optimizers, {len(self._optimizers)} are "
                "given; start the job anew to begin without it"
            )
        return value

    def _apply(self, value: dict[str, Any]) -> None:
        self._model.load_state_dict(value["model"])
        for optimizer, state in zip(self._optimizers, value["optimizers"]):
            optimizer.load_state_dict(state)


def _value_of(buffer: SnapshotBuffer) -> dict[str, Any]:
    tensors: list[torch.Tensor] = []
    value: dict[str, Any] = decode(json.loads(buffer.text()), None, tensors)
    buffer.read(tensors)
    return value


def _shapes(state: dict[str, Any]) -> dict[str, str]:
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: f"{list(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items()}
