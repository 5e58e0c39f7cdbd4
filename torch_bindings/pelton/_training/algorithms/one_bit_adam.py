"""1-bit Adam: Adam whose second moments stand still after a warm-up, while the first ones travel as signs."""

from __future__ import annotations

from typing import Any

from pelton._training.algorithms._adam import MomentumAlgorithm, MomentumImpl, Piece, TwoStageAdam
from pelton._training.algorithms._pieces import scale
from pelton._training.algorithms.base import GlobalAlgorithmRegistry


class OneBitAdamOptimizer(TwoStageAdam):
    """1-bit Adam's optimizer. With t the number of the step, from 1, T = warmup_steps, m and v the moments:

    t <= T: m and v are Adam's, of the ranks' mean gradient.
    t > T: v stands still; m = the ranks' mean of beta1 m + (1 - beta1) g, as signs with error feedback.
    Each step: x -= lr * (weight_decay x + m / (1 - beta1^t) / (sqrt(v / (1 - beta2^min(t, T))) + eps)).

    Where v is zero, no rank had a gradient in the warm-up, and m is nothing but the signs' noise: x does not move.
    Threads: the trainer's. Owns: its state. Source: arXiv 2102.02888, algorithm 1. Added are Adam's corrections of the
    moments' bias, which the authors' code (OnebitAdam of DeepSpeed) does without, and decoupled weight decay.
    """

    skips_zero_variance = True

    def _step(self, piece: Piece, group: dict[str, Any], step: int) -> None:
        beta1, beta2 = group["betas"]
        piece.update_first(beta1)
        if step <= self.variance_updates:
            piece.update_second(beta2)
        lr = float(group["lr"])
        if group["weight_decay"] != 0:
            scale(piece.parameters, 1 - lr * group["weight_decay"])
        updates = min(step, self.variance_updates)
        denominators = piece.denominators(updates, beta2, group["eps"], is_guarded=self.skips_zero_variance)
        piece.move(piece.first, denominators, lr / (1 - beta1**step))


class OneBitAdamAlgorithm(MomentumAlgorithm):
    """Gradient allreduce until the optimizer's warm-up ends, then the mean of all ranks' first moments as signs, with
    error feedback. Shape: moments keep theirs. Threads: a value. Owns: its options; refers to the optimizer.
    """

    runtime_name = "one_bit_adam"
    own_arguments = ("one_bit_adam_optimizer",)
    optimizer_class = OneBitAdamOptimizer

    def __init__(self, one_bit_adam_optimizer: OneBitAdamOptimizer, hierarchical: bool = True, **options: Any) -> None:
        """Args:
        one_bit_adam_optimizer: the one that steps the model.
        hierarchical: average inside each host first, in full precision; only the hosts' leaders exchange messages.
        **options: others of the runtime's `one_bit_adam`.

        Raises:
          InvalidArgument: not a OneBitAdamOptimizer, or as `RuntimeAlgorithm`.
        """
        super().__init__(one_bit_adam_optimizer, hierarchical=hierarchical, **options)


class OneBitAdamAlgorithmImpl(MomentumImpl, of=OneBitAdamAlgorithm):
    """1-bit Adam at work on a group. Threads: the trainer's. Owns: its options and its phase."""


GlobalAlgorithmRegistry.register("one_bit_adam", OneBitAdamAlgorithm)
