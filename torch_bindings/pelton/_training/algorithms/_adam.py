"""What optimizers of the Adam family share whose first moments are averaged over the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from pelton._training.algorithms._pieces import pieces_of, scale
from pelton._training.algorithms.base import NamedAlgorithm, RegisteredAlgorithm, RuntimeImpl
from pelton._warn import warn
from pelton.errors import InvalidArgument

if TYPE_CHECKING:
    from pelton._training.communication import BaguaProcessGroup


TINY = 1e-4  # of a tensor's mean: a second moment below it makes steps a hundred times those of the others
TINY_SHARE = 1e-3  # of all elements, from which on that is worth a warning
ROUNDING = 1e-10  # of the largest tensor's mean: a tensor's second moments below it are of gradients that only round


class WholeOptimizer(torch.optim.Optimizer):
    """An optimizer whose copies and pickles are made of what it is made of. Those of torch's own class have the groups
    and the state alone, and fail at the first step.

    Threads: the trainer's. Owns: as its subclass.
    """

    made_of: ClassVar[tuple[str, ...]] = ()  # names of attributes

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self.made_of}}


class TwoStageAdam(WholeOptimizer):
    """Adam whose second moments stand still after each parameter's first steps. Its gradients are the same on all ranks
    throughout: the algorithm averages them as they are in its warm-up, and as part of the first moments afterwards.

    What a short warm-up found to be tiny stays tiny, and divides whatever comes later: steps of such elements grow
    without bound, encoded or not. Against that: a longer warm-up, an `eps` of the gradients' size, or `variance_floor`.
    A parameter that is first used later has a warm-up of its own, from what the messages leave of its gradients.
    Threads: the trainer's. Owns: its state, from a parameter's first use: step, exp_avg and exp_avg_sq.
    """

    made_of: ClassVar[tuple[str, ...]] = ("warmup_steps", "variance_floor", "skips_zero_variance", "_has_warned")
    skips_zero_variance = False  # elements whose second moment is 0 do not move

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        variance_floor: float = 0.01,
    ) -> None:
        """Args:
        params: parameters, or groups of them.
        lr: learning rate.
        warmup_steps: steps of the first stage; see the subclass.
        betas: of the first and the second moment.
        eps: added to the denominator.
        weight_decay: see the subclass.
        variance_floor: after the last update of the second moments, elements below this share of their tensor's mean
          are raised to it, once; 0 leaves them as they are, as the papers and Bagua do. Where messages are signs, a
          tensor whose gradients are only what rounding left (a bias before a BatchNorm) does not move.

        Raises:
          ValueError: a value is out of range; the text names it.
        """
        check_adam(lr, betas, eps, weight_decay, variance_floor)
        if warmup_steps <= 0:
            raise ValueError(f"warmup_steps={warmup_steps!r}: must be above 0")
        self._has_warned = False
        self.warmup_steps = warmup_steps
        self.variance_floor = variance_floor
        self._groups_seen: list[dict[str, Any]] | None = None  # load_state_dict replaces them
        self._group_of: dict[torch.Tensor, dict[str, Any]] = {}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._groups_seen, self._group_of = None, {}

    def state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        """A parameter's state, from its first use on."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    @property
    def step_id(self) -> int:
        """Steps taken, by the parameter that has taken most."""
        return max((int(state["step"]) for state in self.state.values() if state), default=0)

    @property
    def variance_updates(self) -> int:
        """How many steps update the second moments: the first ones."""
        return self.warmup_steps

    def moment_of(self, parameter: torch.Tensor) -> tuple[torch.Tensor, float]:
        """A parameter's first moment, and how much of it a new gradient leaves.

        Raises:
          KeyError: the optimizer does not step the parameter.
        """
        groups = self.param_groups
        if self._groups_seen is not groups or parameter not in self._group_of:
            self._groups_seen = groups
            self._group_of = {member: group for group in groups for member in group["params"]}
        beta1 = self._group_of[parameter]["betas"][0]
        return self.state_of(parameter)["exp_avg"], beta1

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step.

        Args:
          closure: computes the loss again, if given.

        Returns:
          What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for step, members in self._begin_step(group).items():
                states = [self.state[parameter] for parameter in members]
                gradients = [parameter.grad for parameter in members if parameter.grad is not None]
                if step == self.variance_updates + 1:
                    self._fix_variances([state["exp_avg_sq"] for state in states])
                first, second = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
                for columns in pieces_of((members, gradients, first, second)):
                    self._step(Piece(*columns), group, step)
        return loss

    def _begin_step(self, group: dict[str, Any]) -> dict[int, list[torch.Tensor]]:
        """The group's parameters that have a gradient, by the number of the step that each is about to take."""
        members: dict[int, list[torch.Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = self.state_of(parameter)
                state["step"] += 1
                members.setdefault(int(state["step"]), []).append(parameter)
        return members

    def _fix_variances(self, variances: list[torch.Tensor]) -> None:
        """Called before the first step that uses second moments as they are from then on."""
        if self.variance_floor > 0:
            if self.skips_zero_variance:
                clear_rounding(variances)
            for variance in variances:
                raise_variance(variance, self.variance_floor, keeps_zeros=self.skips_zero_variance)
        elif not self._has_warned:
            share = share_of_tiny(variances)
            if share > TINY_SHARE:
                self._has_warned = True
                warn(
                    f"{type(self).__name__}: after {self.variance_updates} steps {share:.1%} of the second moments are "
                    f"below {TINY:g} of their tensor's mean and stand still now; training is likely to diverge. Pass "
                    "variance_floor=0.01, or a longer warmup_steps, or a larger eps"
                )

    def _step(self, piece: Piece, group: dict[str, Any], step: int) -> None:
        """Makes step number `step` of some of a group's elements."""
        raise NotImplementedError


@dataclass(frozen=True)
class Piece:
    """Some of what an optimizer steps, by parameter. Threads: a value. Owns: references to the tensors."""

    parameters: list[torch.Tensor]
    gradients: list[torch.Tensor]
    first: list[torch.Tensor]
    second: list[torch.Tensor]

    def update_first(self, beta1: float) -> None:
        """As torch.optim.Adam computes it."""
        torch._foreach_lerp_(self.first, self.gradients, 1 - beta1)

    def update_second(self, beta2: float) -> None:
        """As torch.optim.Adam computes it."""
        scale(self.second, beta2)
        torch._foreach_addcmul_(self.second, self.gradients, self.gradients, value=1 - beta2)

    def denominators(self, updates: int, beta2: float, eps: float, *, is_guarded: bool) -> list[torch.Tensor]:
        """sqrt(v / (1 - beta2^k)) + eps, after k updates of the second moment v. Guarded: infinite where v is zero;
        no rank had a gradient there, a step would follow the signs' noise.
        """
        roots = torch._foreach_sqrt(self.second)
        if is_guarded:
            for root in roots:
                nn.functional.threshold(root, 0.0, math.inf, inplace=True)
        torch._foreach_div_(roots, math.sqrt(1 - beta2**updates))
        torch._foreach_add_(roots, eps)
        return list(roots)

    def move(self, numerators: list[torch.Tensor], denominators: list[torch.Tensor], rate: float) -> None:
        """Subtracts `rate` times the quotients from the parameters."""
        torch._foreach_addcdiv_(self.parameters, numerators, denominators, value=-rate)


def raise_variance(second: torch.Tensor, floor: float, *, keeps_zeros: bool) -> None:
    """Raises second moments below `floor` times their mean to that; those that are 0 only if they are not kept."""
    raised = second.clamp(min=floor * float(second.double().mean()))
    second.copy_(torch.where(second == 0, second, raised) if keeps_zeros else raised)


def clear_rounding(variances: Sequence[torch.Tensor]) -> None:
    """Sets a tensor's second moments to 0 where they are nothing but what rounding left, as those of a bias before a
    BatchNorm: encoded messages bring noise of the other tensors' size there, and so small a divisor would make it huge.
    """
    means = [float(variance.double().mean()) for variance in variances]
    bound = ROUNDING * max(means, default=0.0)
    for variance, mean in zip(variances, means):
        if mean < bound:
            variance.zero_()


def share_of_tiny(variances: list[torch.Tensor]) -> float:
    """How much of all elements is above 0 and below TINY of its tensor's mean."""
    counts = [((v > 0) & (v < TINY * float(v.double().mean()))).sum() for v in variances]
    return float(sum(int(count) for count in counts)) / max(1, sum(v.numel() for v in variances))


def check_adam(lr: float, betas: tuple[float, float], eps: float, weight_decay: float, variance_floor: float) -> None:
    """What all of them ask of their options.

    Raises:
      ValueError: a value is out of range; the text names it.
    """
    for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
        if not value >= 0.0:
            raise ValueError(f"{name}={value!r}: must be 0 or more")
    if not (0.0 <= betas[0] < 1.0 and 0.0 <= betas[1] < 1.0):
        raise ValueError(f"betas={betas!r}: both must be in [0, 1)")
    if not 0.0 <= variance_floor <= 1.0:
        raise ValueError(f"variance_floor={variance_floor!r}: must be in [0, 1]")


# An exact zero comes back as the mean size of its neighbours.
CODECS_THAT_MOVE_ZEROS = ("one_bit",)


class MomentumAlgorithm(NamedAlgorithm):
    """Gradient allreduce until the optimizer's warm-up ends, then the mean of all ranks' first moments in encoded
    messages. Shape: moments keep theirs. Threads: a value. Owns: its options; refers to the optimizer.
    """

    optimizer_class: type[torch.optim.Optimizer]  # of the one that steps the model

    def __init__(self, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        """Args:
        optimizer: the one that steps the model.
        **options: of the runtime's algorithm.

        Raises:
          InvalidArgument: not such an optimizer, or as `RuntimeAlgorithm`.
        """
        if not isinstance(optimizer, self.optimizer_class):
            kind = self.optimizer_class
            room = kind.__module__.replace("pelton._training.", "pelton.torch_api.")
            raise InvalidArgument(
                f"{self.own_arguments[0]}: must be a {kind.__name__}, is a {type(optimizer).__name__}; step the model "
                f"by one, which {room} has"
            )
        self.optimizer = optimizer
        super().__init__(**options)


class MomentumImpl(RuntimeImpl):
    """Gradient allreduce while the optimizer warms up, then an algorithm of the runtime over its first moments.

    Threads: the trainer's. Owns: its options and its phase.
    """

    optimizer: TwoStageAdam

    def __init__(self, process_group: BaguaProcessGroup, *arguments: Any, **options: Any) -> None:
        """Args:
        process_group: the ranks that take part.
        *arguments: as those of `RuntimeImpl`.
        **options: as well.
        """
        super().__init__(process_group, *arguments, **options)
        if self._algorithm.text_of("codec") in CODECS_THAT_MOVE_ZEROS:
            self.optimizer.skips_zero_variance = True
        self._is_warm = self.optimizer_step_id >= self.warmup_steps

    @property
    def optimizer_step_id(self) -> int:
        """Steps that the optimizer has taken."""
        return self.optimizer.step_id

    @property
    def warmup_steps(self) -> int:
        """The optimizer's."""
        return self.optimizer.warmup_steps

    def phase_is_over(self) -> bool:
        """Whether the optimizer's count of steps, which alone says what phase it is, is beyond this one's phase: after
        the warm-up's last step, or where a state was loaded.
        """
        return self._is_warm != (self.optimizer_step_id >= self.warmup_steps)

    def need_reset(self) -> bool:
        """Goes on to the phase that the optimizer is in."""
        is_over = self.phase_is_over()
        self._is_warm = self.optimizer_step_id >= self.warmup_steps
        return is_over

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `gradient_allreduce`, then that of the second phase."""
        if not self._is_warm:
            return RegisteredAlgorithm("gradient_allreduce", {"average": "true"}, stepped_by=self.optimizer)
        return replace(super().registered(), stepped_by=self.optimizer, moment_of=self.optimizer.moment_of)

    def state_dict(self) -> dict[str, Any]:
        """Its phase."""
        return {"is_warm": self._is_warm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on in the phase that `state_dict` told."""
        self._is_warm = bool(state["is_warm"])
