"""Snapshots of training in memory that outlives the ranks, for `pelton run --max-restarts`."""

from __future__ import annotations

import functools
import json
import weakref
from typing import Any

import torch
from pelton_run.snapshots import BUFFERS_PER_RANK
from torch import nn

from pelton import _C
from pelton._training import _before_writes, _session
from pelton._training._encoding import decode, encode
from pelton._training._state_broadcast import of_all_ranks
from pelton._training.checkpoint._buffers import SnapshotBuffer, inherited_buffers
from pelton._training.checkpoint._copying import Copying, Lent, lent, may_be_lent
from pelton._training.checkpoint._ranks import Ranks, wrapped_parts
from pelton._training.checkpoint.checkpointing import AnyOptimizer, _continue_algorithm, _listed, _state_of
from pelton._training.data_parallel._algorithm_state import from_dict
from pelton._training.data_parallel._together import inherit
from pelton._training.data_parallel._user_algorithm import runtime_algorithm
from pelton._warn import warn
from pelton.errors import FailedPrecondition, InvalidArgument, Unsupported

MOST_EXTRA_BYTES = 1 << 20
_NONE = -1


class Snapshots:
    """The last snapshots of this rank: weights, buffers, optimizers, the algorithm, and the CPU's random state.

    They lie in memory of the launcher, `pelton run --max-restarts N`; under any other nothing is kept, and `restore`
    finds nothing. Threads: the trainer's, beside one that copies. Owns: the mapping of that memory.
    """

    _last_to_keep: weakref.ref[Snapshots] | None = None  # of the process
    _has_kept = False

    def __init__(
        self, model: nn.Module, optimizer: AnyOptimizer = None, every: int = 1, lr_scheduler: Any = None
    ) -> None:
        """Args:
          model: wrapped.
          optimizer: the model's, or a list of them.
          every: only steps that it divides are kept. With an algorithm whose ranks exchange something every n steps
            it must be a multiple of n, and those steps the ones that end with the exchange.
          lr_scheduler: the optimizer's, or a list of them: whatever has state_dict() and load_state_dict(), of plain
            values.

        Raises:
          InvalidArgument: `every` is not positive.
        """
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise InvalidArgument(f"every={every!r}: must be a whole number, 1 or more")
        self._model = model
        self._optimizers = _listed(optimizer)
        self._schedulers = _listed(lr_scheduler)
        self._every = every
        self._buffers = inherited_buffers()
        self._copies: _C.TensorCopies | None = None  # made where it is needed, because it has a thread
        self._copies_at_once = False

    def keep(self, step: int, extra: bytes = b"") -> None:
        """Takes a snapshot, after the optimizer's step and before the next forward pass. Not collective.

        Buffers, and whatever is small, are copied before it returns, weights and the optimizers' state beside the next
        forward and backward pass. The snapshot counts when these are through: when the backward pass ends, at the
        latest, or before the next step of an optimizer, collective of Pelton's, `keep` or `wait`. A rank that dies
        before leaves the snapshot before. Where Pelton does not hear of what writes to the weights, because nothing is
        wrapped or the algorithm is written in Python, all is copied before it returns.

        Args:
          step: how many steps are done; every rank keeps the same ones.
          extra: what the script wants back, such as the position in its data; at most 1 MiB.

        Raises:
          InvalidArgument: `step` or `extra` is out of range, a later step is kept, or the state holds more than
            tensors and plain values.
          Unsupported: the model's weights are averaged beside training, so that no moment has a state of its own.
          FailedPrecondition: another model of this process keeps snapshots in turns with this one.
          OSError: there is not enough memory.
          DeadlineExceeded: the last one is not through.

        Warns:
          UserWarning: once, here or where the snapshot would count: something else than an optimizer's step has
            changed a tensor that was being copied. Then it does not count, and all of the later ones is copied before
            `keep` returns.
        """
        if not isinstance(step, int) or isinstance(step, bool) or step < 1:
            raise InvalidArgument(f"step={step!r}: must be a whole number, 1 or more")
        if len(extra) > MOST_EXTRA_BYTES:
            raise InvalidArgument(f"extra has {len(extra)} bytes; at most {MOST_EXTRA_BYTES} are kept")
        _before_writes.settle()
        if not self._buffers or step % self._every:
            return
        self._check_turns()
        newest = self._newest()
        if newest is not None and step < newest.step:
            raise InvalidArgument(
                f"step={step}: the last snapshot is of step {newest.step}; count steps over all epochs, and call "
                "restore() first in a run that goes on"
            )
        tensors: list[torch.Tensor] = []
        value = self._value(extra)
        text = json.dumps(encode(value, tensors, "snapshot")).encode()
        oldest = min(self._buffers, key=lambda buffer: buffer.sequence)
        places = oldest.begin(text, tensors)
        beside = self._lent(value["model"], tensors, places)
        copying = self._begin_copying(oldest, step, list(beside.values())) if beside else None
        for i, (tensor, place) in enumerate(zip(tensors, places)):
            if i not in beside:
                oldest.fill(place, tensor)
        if copying is not None:
            _before_writes.add(copying)
            return
        self._seal(oldest, step)
        self._tell_kept()

    def _check_turns(self) -> None:
        """A rank has memory for one model's, and would give one's weights to the other."""
        last = Snapshots._last_to_keep() if Snapshots._last_to_keep is not None else None
        if self._has_kept and last is not None and last._model is not self._model:
            raise FailedPrecondition(
                "Snapshots.keep: another model of this process keeps snapshots, too, and a rank has memory for those "
                "of one; make one Snapshots of a module that holds both (nn.ModuleList), and a list of their optimizers"
            )
        self._has_kept, Snapshots._last_to_keep = True, weakref.ref(self)

    def wait(self) -> int:
        """Waits until the last snapshot counts, unless something has changed it, of which a warning tells.

        To be called where something is about to write to weights or to an optimizer's state that Pelton does not hear
        of: an optimizer that is none of torch's, weights that are set by hand. Blocks: until it is copied.

        Returns:
          The step of the newest snapshot that counts on this rank; 0: there is none.

        Raises:
          DeadlineExceeded: it is not through.
        """
        _before_writes.settle()
        newest = self._newest()
        return 0 if newest is None else newest.step

    def restore(self) -> tuple[int, bytes]:
        """Goes back to the newest snapshot that every rank holds. Collective over the model's group.

        To be called once model and optimizers are made and the model is wrapped.

        Returns:
          Its step, and what the script has left with it; 0 and nothing where a rank holds none.

        Raises:
          InvalidArgument: it is that of another model, here or on the rank that the text names.
          FailedPrecondition: each rank holds some, but no step is held by all.
        """
        _before_writes.settle()
        if self._buffers and _session.is_initialized():
            session = _session.current()
            session.backend.tell_set_up_is_over(session.timeout_s)
            if session.backend.is_heir:
                found = self._inherit()
                self._tell_kept()
                return found
        found = self._restore()
        self._tell_kept()
        return found

    def _tell_kept(self) -> None:
        """Another trainer may come in this one's place, and goes on with what the buffers hold.

        Not where an algorithm is written in Python: its rounds, and what it remembers, end with this process.
        """
        parts = wrapped_parts(self._model).values()
        is_ours_alone = any(runtime_algorithm(inner.bagua_algorithm) is None for inner in parts)
        if self._buffers and _session.is_initialized() and not is_ours_alone:
            session = _session.current()
            session.backend.tell_snapshot_is_kept(session.timeout_s)

    def _inherit(self) -> tuple[int, bytes]:
        """This rank's own newest snapshot, in the place of a trainer that has died; the peers take no part."""
        newest = self._newest()
        if newest is None:
            return 0, b""
        step = newest.step
        value = self._read(step)
        self._apply(value)
        for part, inner in wrapped_parts(self._model).items():
            state = value["algorithms"].get(part)
            if state is not None and not state.get("python"):
                rank = inner.process_group.get_global_communicator().rank()
                inherit(inner, from_dict(state, inner.process_group.ranks, rank))
        torch.set_rng_state(value["random"])
        return step, value["extra"]

    def _restore(self) -> tuple[int, bytes]:
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

    def _newest(self) -> SnapshotBuffer | None:
        held = [buffer for buffer in self._buffers if buffer.sequence]
        return max(held, key=lambda buffer: buffer.sequence, default=None)

    def _lent(self, model: dict[str, Any], tensors: list[torch.Tensor], places: list[int]) -> dict[int, Lent]:
        """Which of the tensors are to be copied beside the next passes."""
        if self._copies_at_once or not may_be_lent(wrapped_parts(self._model)):
            return {}
        parameters = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        return lent(tensors, places, model, parameters)

    def _begin_copying(self, buffer: SnapshotBuffer, step: int, tensors: list[Lent]) -> Copying:
        session = _session.current()
        session.backend.tell_snapshot_begins(session.timeout_s)
        self._copies = self._copies or _C.TensorCopies()
        ended = functools.partial(self._copied, buffer, step)
        name = f"the snapshot of step {step} of rank {session.backend.rank}"
        return Copying(name, tensors, buffer.memory(), self._copies, session.timeout_s, ended)

    def _copied(self, buffer: SnapshotBuffer, step: int, changed: str | None) -> None:
        if changed is None:
            self._seal(buffer, step)
            if _session.is_initialized():
                session = _session.current()
                session.backend.tell_snapshot_is_through(session.timeout_s)
            return
        if not self._copies_at_once:
            self._copies_at_once = True
            warn(
                f"the snapshot of step {step} does not count: {changed} was changed while it was copied, by something "
                "else than a step of an optimizer of torch's. From now on keep() copies everything before it returns, "
                "which takes longer. Call wait() before such a change, and make Snapshots anew, to have it copied "
                "beside training"
            )

    def _seal(self, buffer: SnapshotBuffer, step: int) -> None:
        buffer.seal(max(each.sequence for each in self._buffers) + 1, step)

    def _value(self, extra: bytes) -> dict[str, Any]:
        wrapped = wrapped_parts(self._model)
        if any(inner._rounds.is_averaging for inner in wrapped.values()):
            raise Unsupported("Snapshots.keep: the algorithm averages weights beside training; use save_checkpoint")
        return {
            "model": dict(self._model.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
            "algorithms": {name: _state_of(inner) for name, inner in wrapped.items()},
            "random": torch.get_rng_state(),
            "extra": bytes(extra),
        }

    def _newest_common(self, ranks: Ranks) -> int:
        held = [buffer.step if buffer.sequence else _NONE for buffer in self._buffers]
        mine = (held + [_NONE] * BUFFERS_PER_RANK)[:BUFFERS_PER_RANK]
        everyones = of_all_ranks(ranks.communicator, mine, torch.int64).tolist() if ranks.size > 1 else [mine]
        steps = [{step for step in row if step != _NONE} for row in everyones]
        common = set.intersection(*steps)
        if not common and all(steps):
            texts = (f"rank {rank} steps {sorted(held)}" for rank, held in enumerate(steps))
            raise FailedPrecondition(
                f"no step is held by all ranks ({', '.join(texts)}): with an algorithm whose ranks exchange something "
                "every n steps give every=n to Snapshots, or go on from a checkpoint"
            )
        return max(common, default=0)

    def _read(self, step: int) -> dict[str, Any]:
        held = (buffer for buffer in self._buffers if buffer.sequence and buffer.step == step)
        buffer = max(held, key=lambda buffer: buffer.sequence)  # a step may have been kept twice
        value = _value_of(buffer)
        ours, theirs = _shapes(self._model.state_dict()), _shapes(value["model"])
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise InvalidArgument(
                    f"the snapshot of step {step} is of another model: {name} is {theirs.get(name, 'missing')} there "
                    f"and {ours.get(name, 'missing')} here; start the job anew to begin without it"
                )
        for kind, given in (("optimizers", self._optimizers), ("schedulers", self._schedulers)):
            if len(value[kind]) != len(given):
                raise InvalidArgument(
                    f"the snapshot of step {step} has {len(value[kind])} {kind}, {len(given)} are given; start the job "
                    "anew to begin without it"
                )
        return value

    def _apply(self, value: dict[str, Any]) -> None:
        self._model.load_state_dict(value["model"])
        for optimizer, state in zip(self._optimizers, value["optimizers"]):
            optimizer.load_state_dict(state)
        for scheduler, state in zip(self._schedulers, value["schedulers"]):
            scheduler.load_state_dict(state)


def _value_of(buffer: SnapshotBuffer) -> dict[str, Any]:
    tensors: list[torch.Tensor] = []
    value: dict[str, Any] = decode(json.loads(buffer.text()), None, tensors)
    buffer.read(tensors)
    return value


def _shapes(state: dict[str, Any]) -> dict[str, str]:
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: f"{list(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items()}
