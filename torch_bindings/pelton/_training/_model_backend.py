"""What `get_backend` gives: one wrapped model's part of the runtime, under Bagua's name for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pelton._training import _session
from pelton.errors import NotFound


class ModelBackend:
    """One wrapped model's communication. Threads: the trainer's. Owns: nothing."""

    def __init__(self, model: Any) -> None:
        """Args:
        model: what keeps a wrapped module's ranks together, its `bagua_ddp`.
        """
        self._model = model

    @property
    def model_name(self) -> str:
        """The model's name, that of rank 0."""
        return str(self._model.bagua_module_name)

    def wait_pending_comm_ops(self) -> int:
        """Completes the round that is open, if one is: results may be read then.

        Returns:
          The number of buckets that were waited for.

        Raises:
          PeltonError: what the round failed with; the exception itself that an operation written in Python raised.
        """
        return int(self._model.finish_round())

    def mark_communication_ready(self, bagua_tensor: Any, event: object = None) -> None:
        """Says that a registered tensor is final; when all of its bucket are, the bucket's operations run.

        Args:
          bagua_tensor: the tensor, or its `bagua_backend_tensor()`.
          event: accepted; on the CPU there is nothing to wait for.

        Raises:
          PeltonError: as `Tensor.bagua_mark_communication_ready`.
        """
        getattr(bagua_tensor, "proxy", bagua_tensor).bagua_mark_communication_ready()

    def register_ordered_buckets(self, buckets: Sequence[Any]) -> None:
        """Has the model communicate these buckets, in this order, from now on. Collective over its group.

        Args:
          buckets: `BaguaBucket` objects, or their `backend_bucket`s.

        Raises:
          InvalidArgument: they cannot be served, or differ between ranks.
          FailedPrecondition: the model's algorithm is one of the runtime's, which has buckets of its own.
        """
        self._model.register_ordered_buckets(buckets)

    def statistics(self) -> dict[str, float]:
        """Counts since registration: rounds, wait_seconds, bytes, sent_bytes, copied_bytes, plan_generation."""
        counts: dict[str, float] = self._model.statistics()
        return counts


def get_backend(model_name: str) -> ModelBackend:
    """The communication of the wrapped model with that name (`bagua_module_name`).

    Raises:
      NotFound: no such model is wrapped; the text lists the names.
      FailedPrecondition: the process group is not initialised.
    """
    models: dict[str, Any] = {model.bagua_module_name: model for model in _session.current().models()}
    if model_name not in models:
        known = ", ".join(sorted(models)) or "none"
        raise NotFound(f"model_name={model_name!r}: no such model is wrapped; there are: {known}")
    return ModelBackend(models[model_name])
