"""What BlueFog's optimizers do at the moments of a step: bases of the classes that `optimizers` makes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Union

import torch
from torch._compile import _disable_dynamo

from pelton.bluefog.torch import _windows
from pelton.bluefog.torch._basics import out_neighbor_ranks, shown_if_there_is_a_timeline
from pelton.bluefog.torch._combining import (
    CombinedBucket,
    CommunicationType,
    FlatBucket,
    Knobs,
    Named,
    Rhythm,
    combine,
    finish,
    mean_of_gradients,
)
from pelton.bluefog.torch._early_steps import STEP_BY_PARTS, EarlySteps, only
from pelton.bluefog.torch._window_table import settle
from pelton.bluefog.torch.mpi_ops import barrier
from pelton.errors import FailedPrecondition, InvalidArgument

StepFunction = Callable[[Any, torch.Tensor, torch.Tensor, dict[str, Any]], None]


class Distributed(torch.optim.Optimizer):
    """What all share; a base of the class that is made. Threads: the trainer's. Owns: hooks."""

    # A GradScaler that finds an overflow leaves out step() here, and the ranks would be out of step from then on; so it
    # is told that step() sees to that itself.
    _step_supports_amp_scaling = True
    _is_combined: bool
    _skips: bool
    _rhythm: Rhythm
    _named: Named

    def begin(self) -> None:
        """The J-th forward pass begins."""

    def before(self, is_due: bool) -> None:
        """step() begins."""

    def after(self, is_due: bool) -> None:
        """The optimizer has stepped."""

    @_disable_dynamo  # what brings the ranks together cannot be compiled
    def step(self, closure: Any = None) -> Any:
        """The optimizer's own step, with what brings the ranks together before or after it. Blocks: until that is done.

        Of a GradScaler it leaves out the optimizer's own step alone where a gradient is not finite then; the ranks are
        brought together all the same. The scaler of a rank looks at that rank's gradients, so that scales may differ.

        Args:
          closure: evaluates the model again; it is called once, before anything else.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        is_due = self._is_combined and not self._skips and self._rhythm.before_step()
        if self._skips:
            self._rhythm.note_own_step()
        with shown_if_there_is_a_timeline("optimizer", "STEP"), self._unscaled() as is_scaled:
            self.before(is_due)
            if not (is_scaled and self._overflows()):
                self.step_alone()
            self.after(is_due)
        return loss

    @contextmanager
    def _unscaled(self) -> Iterator[bool]:
        """Whether a GradScaler steps; within it gradients are as its `unscale_` leaves them, and it is out of sight."""
        names = [name for name in ("grad_scale", "found_inf") if name in self.__dict__]
        of_scaler: dict[str, Any] = {name: self.__dict__.pop(name) for name in names}
        scale = of_scaler.get("grad_scale")
        if scale is not None:
            inverse = scale.double().reciprocal().float()
            for gradient in self._gradients():
                gradient.mul_(inverse.to(gradient.device))
        try:
            yield bool(of_scaler)
        finally:
            self.__dict__.update(of_scaler)  # the scaler takes them away

    def _gradients(self) -> Iterator[torch.Tensor]:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    yield parameter.grad._values() if parameter.grad.is_sparse else parameter.grad

    def _overflows(self) -> bool:
        """Whether a gradient is not finite, for which the optimizer's own step is left out."""
        return not all(bool(torch.isfinite(gradient).all()) for gradient in self._gradients())

    def step_alone(self) -> None:
        """The optimizer's own step, of this rank."""
        super().step()

    def synchronize(self) -> None:
        """Brings together what step() would, now; the next step() does not, within `skip_synchronize` or without."""
        if self._is_combined:
            self.before(self._rhythm.note_synchronize())

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it step() is the optimizer's own; to be entered after `synchronize`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.load_state_dict`. A scheduler of the optimizer that this one was made of goes on.

        Args:
          state_dict: of an optimizer of this class, made by BlueFog's functions or not.
        """
        groups = self.param_groups  # the list is shared with that optimizer
        super().load_state_dict(state_dict)
        groups[:] = self.param_groups
        self.param_groups = groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused, because the ranks would not be brought together in its parameters.

        Args:
          param_group: for `torch.optim.Optimizer.add_param_group`.

        Raises:
          FailedPrecondition: always.
        """
        raise FailedPrecondition(
            f"{type(self).__name__}.add_param_group: the optimizer brings ranks together in the parameters that it was "
            "made with; make a new one of an optimizer that has all groups"
        )

    def turn_on_timeline(self, model: Any = None) -> bool:
        """Nothing: steps are in the timeline whenever there is one (BLUEFOG_TIMELINE)."""
        return True

    def turn_off_timeline(self) -> bool:
        """As `turn_on_timeline`."""
        return True


class StepsFirst(Distributed):
    """Of what brings the ranks together after the optimizer has stepped. Threads: the trainer's. Owns: nothing more."""

    def synchronize(self) -> None:
        """Nothing, because there is nothing to bring together before step()."""

    def skip_synchronize(self) -> NoReturn:
        """Refused, because a step() within it would never bring the ranks together.

        Raises:
          FailedPrecondition: always.
        """
        raise FailedPrecondition(
            f"{type(self).__name__}.skip_synchronize: this optimizer brings ranks together after it has stepped, so "
            "that a step() within it would leave that out; call step() alone, and change gradients before it"
        )


class Combining(Distributed):
    """Of what combines weights with other ranks'. Threads: the trainer's. Owns: nothing more."""

    _knobs: Knobs
    _buckets: list[CombinedBucket]

    def __getattr__(self, name: str) -> Any:
        knobs = self.__dict__.get("_knobs")
        if knobs is None or name not in knobs.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(knobs, name)

    def __setattr__(self, name: str, value: Any) -> None:
        knobs = self.__dict__.get("_knobs")
        if knobs is None or name not in knobs.__dict__:
            object.__setattr__(self, name, value)
            return
        setattr(knobs, name, value)


class AdaptWithCombine(Combining):
    """w = sum of weights * w, then the optimizer's step by the gradient at the weights before."""

    def begin(self) -> None:
        combine(self._buckets, self._knobs)

    def before(self, is_due: bool) -> None:
        if is_due:
            finish(self._buckets)


class AdaptThenCombine(StepsFirst, Combining):
    """The optimizer's step, then w = sum of weights * w."""

    _own_step: Union[StepFunction, None]
    _early: Union[EarlySteps, None]

    @property
    def steps_in_backward(self) -> bool:
        """Whether the backward pass steps a bucket and begins to combine it when its gradients are final.

        So does BlueFog. False at first, because what changes gradients before step() (clipping) comes too late then: an
        error says so. Where all ranks or machines are combined, the ends of edges are compared, or weights are on a
        GPU, the ranks have to begin in one order, and step() does it all. Hooks of step() run for each bucket.
        """
        return self.__dict__.get("_early") is not None

    @steps_in_backward.setter
    def steps_in_backward(self, value: bool) -> None:
        own_class, early = type(self).__bases__[1], self.__dict__.get("_early")
        if early is not None and early.buckets:
            raise FailedPrecondition(
                "steps_in_backward: the backward pass has stepped already; change it before, or after step()"
            )
        if value and own_class not in STEP_BY_PARTS and self.__dict__.get("_own_step") is None:
            raise InvalidArgument(
                f"steps_in_backward: {own_class.__name__} may not step each parameter by itself, as SGD or Adam do; "
                "call register_step_function() first, or leave it False, which steps all parameters at once"
            )
        note = weakref.WeakMethod(self._note_gradient)
        self._early = EarlySteps(self._named, self._buckets, note) if value and self._is_combined else None

    def _note_gradient(self, parameter: torch.Tensor) -> None:
        knobs, early = self._knobs, self._early
        is_of_edges = knobs.communication_type is CommunicationType.neighbor_allreduce and not knobs.enable_topo_check
        has_order = parameter.is_cpu  # on GPUs two neighbors begin in the same order
        if early is None or not (is_of_edges and has_order) or self._skips or not self._rhythm.is_due:
            return
        bucket = early.note_gradient(parameter)
        if bucket is not None:
            with only(self, early.add(bucket)):
                self._step_all()
            bucket.begin(knobs, checks=False)

    def register_step_function(self, step_func: StepFunction) -> None:
        """Has a function step each parameter in place of the optimizer's own code.

        Args:
          step_func: takes the optimizer, a parameter, its gradient and its group, and changes the parameter.
        """
        self._own_step = step_func

    def step_alone(self) -> None:
        """By the function that was registered, or the optimizer's own code; what the backward pass has not stepped."""
        early = self.__dict__.get("_early")
        if early is None or not early.buckets:
            self._step_all()
            return
        early.check()
        with only(self, early.rest()):
            self._step_all()

    def _overflows(self) -> bool:
        # What the backward pass has stepped by scaled gradients is an error of step_alone().
        early = self.__dict__.get("_early")
        return not (early is not None and early.buckets) and super()._overflows()

    def _step_all(self) -> None:
        own_step = self.__dict__.get("_own_step")
        if own_step is None:
            super().step_alone()
            return
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        own_step(self, parameter, parameter.grad, group)

    def after(self, is_due: bool) -> None:
        early = self.__dict__.get("_early")
        begun = set() if early is None else set(early.buckets)
        if early is not None:
            early.clear()
        if not is_due and not begun:
            return
        combine([bucket for bucket in self._buckets if bucket.name not in begun], self._knobs)
        finish(self._buckets)


class GradientAllreduce(Distributed):
    """The mean of the ranks' gradients, then the optimizer's step."""

    _buckets: list[FlatBucket]

    def before(self, is_due: bool) -> None:
        if is_due:
            mean_of_gradients(self._buckets)


class Windowed(Distributed):
    """Of what goes by windows, one a parameter. Threads: the trainer's. Owns: the windows."""

    _windows: dict[str, torch.Tensor]  # by name: the window's own tensor
    _handles: list[int]
    force_barrier: bool

    def before(self, is_due: bool) -> None:
        if not is_due:
            return
        self._wait()
        self._check()
        for name in self._windows:
            _windows.win_update(name, require_mutex=True)

    def unregister_window(self) -> None:
        """Frees the windows. Collective. The optimizer is not to step after that."""
        for name in self._windows if self._is_combined else ():  # a single rank has made none
            _windows.win_free(name)
        self._windows.clear()

    def _check(self) -> None:
        for (name, tensor), (_, parameter) in zip(self._windows.items(), self._named):
            if tensor.data_ptr() != parameter.data_ptr():
                raise FailedPrecondition(
                    f"window {name!r}: the memory of its parameter has been replaced since the optimizer was made; "
                    "call unregister_window() and make the optimizer anew, on all ranks"
                )
        self._check_windows()

    def _check_windows(self) -> None:
        if not self._windows and self._named:
            raise FailedPrecondition("the optimizer's windows were freed by unregister_window(): make it anew")

    def _wait(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            _windows.win_wait(handle)
        if self.force_barrier:
            barrier()


class WinPut(Windowed):
    """Puts the weights into the neighbors' windows; at step() takes the mean with what has come, then steps."""

    dst_weights: Any

    def begin(self) -> None:
        self._check()
        self._handles.append(_windows.put_all_nonblocking(self._windows, self.dst_weights))


class PullGet(Windowed):
    """Gets the neighbors' weights; at step() takes the mean with them, then steps."""

    src_weights: Any

    def begin(self) -> None:
        self._check()
        for name in self._windows:
            self._handles.append(_windows.win_get_nonblocking(name, self.src_weights, require_mutex=True))

    def after(self, is_due: bool) -> None:
        # A neighbor's get waits for no GPU, and is to find the weights of every step that has returned.
        for tensor in {tensor.device: tensor for tensor in self._windows.values()}.values():
            settle(tensor)


class PushSum(StepsFirst, Windowed):
    """Push-sum: x and its weight w go out in shares and come in; gradients are at z = x / w, which parameters hold.
    Where a parameter holds something else when step() begins, x becomes w times that.

    Source: Assran et al., Stochastic Gradient Push (arXiv 1811.10792), algorithm 1.
    """

    _buckets: list[FlatBucket]

    def before(self, is_due: bool) -> None:
        self._check_windows()
        for bucket, x in zip(self._buckets, self._windows.values()):
            given = bucket.packed(bucket.parameters)
            # What the program has changed since the last step (a broadcast, a checkpoint) is a z of its own.
            x[:-1].copy_(torch.where(given == x[:-1] / x[-1], x[:-1], given * x[-1]))
        self._set([x[:-1] for x in self._windows.values()])

    def after(self, is_due: bool) -> None:
        for bucket, x in zip(self._buckets, self._windows.values()):
            x[:-1].copy_(bucket.packed(bucket.parameters))
        if is_due:
            self._share()
        self._set([x[:-1] / x[-1] for x in self._windows.values()])

    def _share(self) -> None:
        out = out_neighbor_ranks()
        share = 1.0 / (len(out) + 1)
        for name, x in self._windows.items():
            _windows.win_accumulate(
                x, name, self_weight=share, dst_weights=dict.fromkeys(out, share), require_mutex=True
            )
        if self.force_barrier:
            barrier()
        for name in self._windows:
            _windows.win_update_then_collect(name, require_mutex=True)

    def _set(self, flats: Sequence[torch.Tensor]) -> None:
        for bucket, flat in zip(self._buckets, flats):
            bucket.unpack(flat)
