"""1-bit Adam: Adam whose second moments stand still after a warm-up, while the first ones travel as signs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pelton._training.algorithms._adam import MomentumImpl, Piece, TwoStageAdam
from pelton._training.algorithms._options import compression, to_text
from pelton._training.algorithms._pieces import scale
from pelton._training.algorithms.base import Algorithm, GlobalAlgorithmRegistry
from pelton.errors import InvalidArgument

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup


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


class OneBitAdamAlgorithmImpl(MomentumImpl):
    """1-bit Adam at work on a group. Threads: the trainer's. Owns: its options and its phase."""

    runtime_name = "one_bit_adam"
    default_codec = "one_bit"


class OneBitAdamAlgorithm(Algorithm):
    """Gradient allreduce until the optimizer's warm-up ends, then the mean of all ranks' first moments as signs, with
    error feedback. Shape: moments keep theirs. Threads: a value. Owns: its options; refers to the optimizer.
    """

    def __init__(
        self,
        one_bit_adam_optimizer: OneBitAdamOptimizer,
        hierarchical: bool = True,
        codec: str | None = None,
        codec_options: Mapping[str, object] | None = None,
    ) -> None:
        """Args:
        one_bit_adam_optimizer: the one that steps the model.
        hierarchical: average inside each host first, in full precision; only the hosts' leaders exchange messages.
        codec: how messages are encoded; None for `one_bit`.
        codec_options: the codec's.

        Raises:
          InvalidArgument: not a OneBitAdamOptimizer.
        """
        if not isinstance(one_bit_adam_optimizer, OneBitAdamOptimizer):
            raise InvalidArgument(
                f"one_bit_adam_optimizer: must be a OneBitAdamOptimizer, is {one_bit_adam_optimizer!r}"
            )
        self.optimizer = one_bit_adam_optimizer
        self.options = {**to_text(hierarchical=hierarchical), **compression(codec, codec_options)}

    def reify(self, process_group: BaguaProcessGroup) -> OneBitAdamAlgorithmImpl:
        """Puts it to work on a group."""
        return OneBitAdamAlgorithmImpl(process_group, self.optimizer, self.options)


GlobalAlgorithmRegistry.register("one_bit_adam", OneBitAdamAlgorithm, "Adam; after a warm-up its momenta as signs")
