"""0/1 Adam: Adam that exchanges second moments ever more rarely, and first ones as signs, also ever more rarely."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from pelton._training.algorithms._adam import (
    MomentumAlgorithm,
    Piece,
    WholeOptimizer,
    check_adam,
    clear_rounding,
    raise_variance,
)
from pelton._training.algorithms._pieces import pieces_of, scale
from pelton._training.algorithms.base import (
    GlobalAlgorithmRegistry,
    OptimizerExchange,
    RegisteredAlgorithm,
    RuntimeImpl,
)
from pelton.errors import FailedPrecondition


class ZeroOneAdamOptimizer(WholeOptimizer):
    """0/1 Adam's optimizer. With t the number of the step, from 1, and c = lr / (1 - beta1^t):

    t in T_v: gradients are the ranks' mean; v = beta2 v + (1 - beta2) g^2, before it is used.
    Each step: m = beta1 m + (1 - beta1) g;  u += c m;  s += c;  x -= c m / d, with d = sqrt(v / (1 - beta2^k)) + eps
    after k updates of v.
    t in T_u: u becomes the ranks' mean, as signs with error feedback; then with y the x after the last such step
    x = y - u / d;  m = u / s;  u = s = 0. Where t is in T_v too and the ranks had the same m before, their u are the
    same already, and nothing is exchanged. While lr is 0, s is 0 and m stays each rank's own.

    T_v: 1, and then 2^floor(j / variance_updates) steps from the j-th, j from 0, to the next, up to
    F = variance_freeze_step.
    T_u: all steps up to F; then those that min(2^floor((t - F) / doubling_steps), max_local_steps) divides.
    Where v is zero, no rank had a gradient yet: x does not move there. A parameter without a gradient has a zero one.
    Signs add noise of m's mean size to every element. Where gradients differ much in size, as those of inputs that are
    rarely seen, choose a variance_floor, an eps of that size, or a finer codec. A GradScaler is refused: between
    exchanges each rank would skip steps and choose a scale of its own.
    Threads: the trainer's. Owns: its state, from a parameter's first use. Source: arXiv 2202.06009, algorithm 1, and
    section 6 for T_v and T_u. Added are Adam's corrections of the moments' bias and decoupled weight decay. As in the
    authors' code (ZeroOneAdam of DeepSpeed) m and v have taken in the step's gradient before they are used, and in T_v
    m takes the mean gradient, so that no signs are needed there. Unlike there, it is u that travels as signs in the
    other steps up to F, not g, and weight decay does not enter u, hence not m.
    """

    made_of = ("_counts", "variance_floor")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        variance_updates: int = 16,
        variance_freeze_step: int = 100000,
        doubling_steps: int = 32678,
        max_local_steps: int = 16,
        variance_floor: float = 0.01,
    ) -> None:
        """Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: of the first and the second moment.
        eps: added to the denominator.
        weight_decay: decoupled, as AdamW's.
        variance_updates: updates of the second moments before the steps between them double.
        variance_freeze_step: the last step that may update them. Units: steps.
        doubling_steps: after these the steps between exchanges double, and again; 32678 is DeepSpeed's. Units: steps.
        max_local_steps: most steps from one exchange to the next.
        variance_floor: after each update of the second moments, elements below this share of their tensor's mean are
          raised to it, but for those that are 0; 0 leaves them as they are, as the paper does.

        Raises:
          ValueError: a value is out of range; the text names it.
        """
        check_adam(lr, betas, eps, weight_decay, variance_floor)
        counts = {
            "variance_updates": variance_updates,
            "variance_freeze_step": variance_freeze_step,
            "doubling_steps": doubling_steps,
            "max_local_steps": max_local_steps,
        }
        for name, value in counts.items():
            if value < 1:
                raise ValueError(f"{name}={value!r}: must be above 0")
        self._counts = counts
        self.variance_floor = variance_floor
        # Set while the model is wrapped: makes every parameter's `accumulated` the ranks' mean.
        self.exchange: Callable[[], None] | None = None
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("exchange", None)  # a copy steps no wrapped model

    def state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        """A parameter's state, from its first use on. Those of a group take the same steps."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state.update(
                step=0,
                variance_updates=0,
                total=0.0,  # s
                decay=1.0,  # of the weights since the last exchange
                is_common=True,  # m: the ranks have the same
            )
            for name in ("exp_avg", "exp_avg_sq", "accumulated"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    @property
    def step_id(self) -> int:
        """Steps taken."""
        return max((int(state["step"]) for state in self.state.values() if state), default=0)

    def updates_variance(self, step: int) -> bool:
        """Whether the step is in T_v: its gradients must be the ranks' mean."""
        if step > self._counts["variance_freeze_step"]:
            return False
        position, updates = 1, 0
        while position < step:
            position += 2 ** (updates // self._counts["variance_updates"])
            updates += 1
        return position == step

    def exchanges(self, step: int) -> bool:
        """Whether the step is in T_u."""
        local = step - self._counts["variance_freeze_step"]
        if local <= 0:
            return True
        interval = 1 << min(local // self._counts["doubling_steps"], 30)
        return step % min(interval, self._counts["max_local_steps"]) == 0

    def accumulated_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """A parameter's u."""
        accumulated: torch.Tensor = self.state_of(parameter)["accumulated"]
        return accumulated

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step.

        Args:
          closure: computes the loss again, if given.

        Returns:
          What the closure returned.

        Raises:
          FailedPrecondition: a GradScaler calls it; or a group was added after the second moments' last update.
          PeltonError: what the exchange failed with.
        """
        self._refuse_scaler()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        step = self.step_id + 1
        self._check_groups(step)
        exchanges, updates_variance = self.exchanges(step), self.updates_variance(step)
        is_common = updates_variance and self._has_common_moments()
        for group in self.param_groups:
            self._accumulate(group, step, updates_variance)
            if not exchanges:
                self._step_alone(group)
        if exchanges:
            if self.exchange is not None and not is_common:
                self.exchange()
            for group in self.param_groups:
                self._step_together(group)
        return loss

    @torch.no_grad()
    def come_together(self) -> None:
        """Ends the steps that ranks have taken alone with an exchange, as a step in T_u does. All ranks must call it.

        Raises:
          PeltonError: what the exchange failed with.
        """
        members = [parameter for group in self.param_groups for parameter in group["params"]]
        if self.exchange is None or not any(self.state_of(parameter)["total"] > 0 for parameter in members):
            return
        self.exchange()
        for group in self.param_groups:
            self._step_together(group)

    _step_supports_amp_scaling = True  # so that a GradScaler calls `step` in any case, and shows itself there

    def _refuse_scaler(self) -> None:
        if self.__dict__.pop("found_inf", None) is None:
            return
        self.__dict__.pop("grad_scale", None)
        raise FailedPrecondition(
            "ZeroOneAdamOptimizer.step() was called by a GradScaler, which skips steps and chooses its scale on each "
            "rank alone: the ranks would lose step. Call optimizer.step() without a scaler, as bfloat16 and float32 "
            "allow, or take QAdam or 1-bit Adam"
        )

    def _check_groups(self, step: int) -> None:
        freeze = self._counts["variance_freeze_step"]
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if step > freeze and self.state_of(parameter)["variance_updates"] == 0:
                    raise FailedPrecondition(
                        f"ZeroOneAdamOptimizer: param_groups[{number}] was first stepped in step {step}, after second "
                        f"moments were last updated in step {freeze}, and would never move; choose a larger "
                        "variance_freeze_step, or make a new optimizer"
                    )

    def _has_common_moments(self) -> bool:
        members = [parameter for group in self.param_groups for parameter in group["params"]]
        return all(self.state_of(parameter).get("is_common", False) for parameter in members)

    def _accumulate(self, group: dict[str, Any], step: int, updates_variance: bool) -> None:
        rate = float(group["lr"]) / (1 - group["betas"][0] ** step)
        for parameter in group["params"]:
            state = self.state_of(parameter)
            state["step"], state["rate"] = step, rate
            state["is_common"] = updates_variance and state.get("is_common", False)
            state["variance_updates"] += updates_variance
            state["total"] += rate
            state["decay"] *= 1 - group["lr"] * group["weight_decay"]
        for piece, accumulated in self._pieces(group):
            if updates_variance:
                piece.update_second(group["betas"][1])
            piece.update_first(group["betas"][0])
            torch._foreach_add_(accumulated, piece.first, alpha=rate)
        if updates_variance and self.variance_floor > 0:
            clear_rounding([self.state[parameter]["exp_avg_sq"] for parameter in group["params"]])
            for parameter in group["params"]:
                raise_variance(self.state[parameter]["exp_avg_sq"], self.variance_floor, keeps_zeros=True)

    def _step_alone(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            state = self.state[parameter]
            if "anchor" not in state:
                state["anchor"] = parameter.detach().clone()
        for piece, _ in self._pieces(group):
            if group["weight_decay"] != 0:
                scale(piece.parameters, 1 - group["lr"] * group["weight_decay"])
            piece.move(piece.first, self._denominators(piece, group), self._first_state(group)["rate"])

    def _step_together(self, group: dict[str, Any]) -> None:
        """From the weights that all ranks have in common, so that they have the next ones in common bit by bit."""
        for parameter in group["params"]:
            if "anchor" in self.state[parameter]:
                parameter.copy_(self.state[parameter].pop("anchor"))
        if not group["params"]:
            return
        decay, total = (self._first_state(group)[name] for name in ("decay", "total"))
        for piece, accumulated in self._pieces(group):
            if decay != 1:
                scale(piece.parameters, decay)
            piece.move(accumulated, self._denominators(piece, group), 1)
            if total > 0:
                torch._foreach_copy_(piece.first, accumulated)
                torch._foreach_div_(piece.first, total)
            torch._foreach_zero_(accumulated)
        for parameter in group["params"]:
            state = self.state[parameter]
            state.update(total=0.0, decay=1.0, is_common=total > 0 or state["is_common"])

    def _pieces(self, group: dict[str, Any]) -> Iterator[tuple[Piece, list[torch.Tensor]]]:
        """All of a group, with what its parameters have accumulated."""
        parameters = group["params"]
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        names = ("exp_avg", "exp_avg_sq", "accumulated")
        states = [[self.state[parameter][name] for parameter in parameters] for name in names]
        for *columns, accumulated in pieces_of((parameters, gradients, *states)):
            yield Piece(*columns), accumulated

    def _first_state(self, group: dict[str, Any]) -> dict[str, Any]:
        """Of a group, whose parameters have all taken the same steps."""
        state: dict[str, Any] = self.state[group["params"][0]]
        return state

    def _denominators(self, piece: Piece, group: dict[str, Any]) -> list[torch.Tensor]:
        updates = self._first_state(group)["variance_updates"]
        return piece.denominators(updates, group["betas"][1], group["eps"], is_guarded=True)


class ZeroOneAdamAlgorithm(MomentumAlgorithm):
    """Ranks exchange when the optimizer says: gradients in full precision in the steps that update its second moments,
    what it has accumulated as signs in those that bring the ranks together. Shape: of the parameters.
    Threads: a value. Owns: its options; refers to the optimizer.
    """

    runtime_name = "one_bit_adam"
    own_arguments = ("zero_one_adam_optimizer",)
    optimizer_class = ZeroOneAdamOptimizer

    def __init__(
        self, zero_one_adam_optimizer: ZeroOneAdamOptimizer, hierarchical: bool = True, **options: Any
    ) -> None:
        """Args:
        zero_one_adam_optimizer: the one that steps the model.
        hierarchical: average inside each host first, in full precision; only the hosts' leaders exchange messages.
        **options: others of the runtime's `one_bit_adam`.

        Raises:
          InvalidArgument: not a ZeroOneAdamOptimizer, or as `RuntimeAlgorithm`.
        """
        super().__init__(zero_one_adam_optimizer, hierarchical=hierarchical, **options)


class ZeroOneAdamAlgorithmImpl(RuntimeImpl, of=ZeroOneAdamAlgorithm):
    """0/1 Adam at work on a group. Threads: the trainer's. Owns: its options."""

    optimizer: ZeroOneAdamOptimizer

    def registered(self) -> RegisteredAlgorithm:
        """The runtime's `one_bit_adam` over what the optimizer accumulates, and `gradient_allreduce` where its second
        moments are updated.
        """
        exchange = OptimizerExchange(self.optimizer, self.optimizer.accumulated_of, self._needs_gradients)
        return replace(super().registered(), stepped_by=self.optimizer, exchange=exchange)

    def _needs_gradients(self) -> bool:
        return self.optimizer.updates_variance(self.optimizer.step_id + 1)


GlobalAlgorithmRegistry.register("zero_one_adam", ZeroOneAdamAlgorithm, "Adam; signs of momenta in ever fewer rounds")
