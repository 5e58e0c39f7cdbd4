"""QAdam: Adam whose second moments stand still after a warm-up, while the first ones travel in encoded messages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from pelton._training.algorithms import _defaults
from pelton._training.algorithms._adam import MomentumAlgorithm, MomentumImpl, Piece, TwoStageAdam
from pelton._training.algorithms.base import GlobalAlgorithmRegistry
from pelton._warn import warn


class QAdamOptimizer(TwoStageAdam):
    """QAdam's optimizer. With t the number of the step, from 1, m and v the moments, g the gradient:

    t < warmup_steps: m and v are Adam's, of the ranks' mean gradient plus `weight_decay` times the weights.
    t = warmup_steps: m and v are used as they are.
    t > warmup_steps: v stands still; m = the ranks' mean of beta1 m + (1 - beta1) g, without weight decay.
    Each step: x -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^min(t, warmup_steps - 1)) + eps).

    In the last formula Bagua has beta2^t: it goes on correcting v for steps that did not update it. Every step is
    longer for it than Adam's, by sqrt((1 - beta2^t) / (1 - beta2^(T - 1))) with T = warmup_steps: after 32 steps of
    warm-up in the end by 5.7, after 1000 by 1.3. Training that stands Adam's steps diverges with it.
    `freeze_variance_correction=False, variance_floor=0` is Bagua's optimizer, and what scripts get that import `bagua`.
    Threads: the trainer's. Owns: its state. Source: Bagua; 1-bit Adam, arXiv 2102.02888, algorithm 1.
    """

    made_of = (*TwoStageAdam.made_of, "freeze_variance_correction")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        freeze_variance_correction: bool | None = None,
        variance_floor: float | None = None,
    ) -> None:
        """Args:
        params: parameters, or groups of them.
        lr: learning rate.
        warmup_steps: steps of the first stage, 2 or more: the last one does not update v.
        betas: of the first and the second moment.
        eps: added to the denominator.
        weight_decay: see the class.
        freeze_variance_correction: the correction of v's bias stops with v, as `OneBitAdamOptimizer`'s; None: yes,
          but no in scripts that import `bagua`.
        variance_floor: after the last update of v, elements below this share of their tensor's mean are raised to it,
          once; 0 leaves them as they are. None: 0.01, but 0 in scripts that import `bagua`.

        Raises:
          ValueError: a value is out of range; the text names it.
        """
        as_bagua = _defaults.are_baguas
        floor = (0.0 if as_bagua else 0.01) if variance_floor is None else variance_floor
        super().__init__(params, lr, warmup_steps, betas, eps, weight_decay, floor)
        if warmup_steps < 2 and not as_bagua:
            raise ValueError(f"warmup_steps={warmup_steps!r}: must be 2 or more, or no step updates the second moments")
        freezes = not as_bagua if freeze_variance_correction is None else freeze_variance_correction
        self.freeze_variance_correction = freezes
        if as_bagua and freeze_variance_correction is None:
            growth = math.sqrt(1 / (1 - betas[1] ** max(1, warmup_steps - 1)))
            warn(
                f"QAdamOptimizer: Bagua's formula makes steps up to {growth:.1f} times those of Adam, and training may "
                "diverge; freeze_variance_correction=True stops that, False keeps it without this warning"
            )

    @property
    def variance_updates(self) -> int:
        """How many steps update the second moments: the first ones."""
        return self.warmup_steps - 1

    def _step(self, piece: Piece, group: dict[str, Any], step: int) -> None:
        beta1, beta2 = group["betas"]
        if step <= self.variance_updates:
            if group["weight_decay"] != 0:
                decayed = torch._foreach_add(piece.gradients, piece.parameters, alpha=group["weight_decay"])
                piece = replace(piece, gradients=list(decayed))
            piece.update_second(beta2)
        if step != self.warmup_steps:
            piece.update_first(beta1)
        updates = min(step, max(1, self.variance_updates)) if self.freeze_variance_correction else step
        denominators = piece.denominators(updates, beta2, group["eps"], is_guarded=self.skips_zero_variance)
        piece.move(piece.first, denominators, float(group["lr"]) / (1 - beta1**step))


class QAdamAlgorithm(MomentumAlgorithm):
    """Gradient allreduce until the optimizer's warm-up ends, then the mean of all ranks' first moments in encoded
    messages. Shape: moments keep theirs. Threads: a value. Owns: its options; refers to the optimizer.
    """

    runtime_name = "qadam"
    own_arguments = ("q_adam_optimizer",)
    optimizer_class = QAdamOptimizer

    def __init__(self, q_adam_optimizer: QAdamOptimizer, hierarchical: bool = True, **options: Any) -> None:
        """Args:
        q_adam_optimizer: the one that steps the model.
        hierarchical: average inside each host first, in full precision; only the hosts' leaders exchange messages.
        **options: others of the runtime's `qadam`.

        Raises:
          InvalidArgument: not a QAdamOptimizer, or as `RuntimeAlgorithm`.
        """
        super().__init__(q_adam_optimizer, hierarchical=hierarchical, **options)


class QAdamAlgorithmImpl(MomentumImpl, of=QAdamAlgorithm):
    """QAdam at work on a group. Threads: the trainer's. Owns: its options and its phase."""


GlobalAlgorithmRegistry.register("qadam", QAdamAlgorithm)
