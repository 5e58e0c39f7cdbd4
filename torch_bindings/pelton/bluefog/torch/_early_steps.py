"""Steps and combines weights inside the backward pass, bucket by bucket, as their gradients become final."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pelton.bluefog.torch._combining import CombinedBucket, Named
from pelton.errors import FailedPrecondition

# Their step changes each element by its own gradient and state, or each parameter by itself: in parts it does the same.
STEP_BY_PARTS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)


@contextmanager
def only(optimizer: torch.optim.Optimizer, numbers: set[int]) -> Iterator[None]:
    """Within it the optimizer has the parameters of these ids alone.

    Args:
      optimizer: whose groups are narrowed.
      numbers: of the parameters, by `id`.
    """
    all_of_group = [group["params"] for group in optimizer.param_groups]
    try:
        for group, parameters in zip(optimizer.param_groups, all_of_group):
            group["params"] = [parameter for parameter in parameters if id(parameter) in numbers]
        yield
    finally:
        for group, parameters in zip(optimizer.param_groups, all_of_group):
            group["params"] = parameters


class EarlySteps:
    """What has been stepped before step(), and when a bucket's gradients are final.

    A gradient is final when the backward pass has added its last part, and a bucket is due when all its parameters that
    were trained at first have theirs. Threads: the trainer's. Owns: hooks on the parameters.
    """

    def __init__(self, named: Named, buckets: Sequence[CombinedBucket], note: weakref.WeakMethod[Any]) -> None:
        """Args:
        named: all parameters.
        buckets: that they lie in.
        note: is called with a parameter whose gradient a backward pass has added to.
        """
        self._names = {id(parameter): name for name, parameter in named}
        self._bucket_of = {id(parameter): bucket for bucket in buckets for parameter in bucket.parameters}
        self._final: dict[str, set[int]] = {bucket.name: set() for bucket in buckets}
        self._awaited = dict.fromkeys(self._final, 0)  # how many gradients a bucket waits for
        self._stepped: list[tuple[torch.Tensor, int, int]] = []  # with the gradient's id and version
        self.buckets: set[str] = set()  # that were stepped
        hook = _GradientHook(note)
        for _, parameter in named:
            if parameter.requires_grad:
                self._awaited[self._bucket_of[id(parameter)].name] += 1
                registered = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                weakref.finalize(self, registered.remove)

    def note_gradient(self, parameter: torch.Tensor) -> CombinedBucket | None:
        """A parameter's gradient is final; the bucket that is due by that.

        Args:
          parameter: whose gradient it is.

        Raises:
          FailedPrecondition: it was final before.
        """
        bucket = self._bucket_of[id(parameter)]
        final = self._final[bucket.name]
        if id(parameter) in final:
            raise FailedPrecondition(
                f"steps_in_backward: parameter '{self._names[id(parameter)]}' has got a gradient in a second backward "
                "pass after the J-th forward pass, and may have been stepped by the first one; say in "
                "num_steps_per_communication how many forward passes a step has, or set steps_in_backward = False"
            )
        final.add(id(parameter))
        return bucket if len(final) == self._awaited[bucket.name] else None

    def add(self, bucket: CombinedBucket) -> set[int]:
        """Notes that a bucket is stepped now; the ids of its parameters."""
        self.buckets.add(bucket.name)
        for parameter in bucket.parameters:
            if parameter.grad is not None:
                self._stepped.append((parameter, id(parameter.grad), parameter.grad._version))
        return {id(parameter) for parameter in bucket.parameters}

    def rest(self) -> set[int]:
        """The ids of the parameters that are not stepped yet."""
        return {number for number, bucket in self._bucket_of.items() if bucket.name not in self.buckets}

    def check(self) -> None:
        """Whether gradients are still those that were stepped with.

        Raises:
          FailedPrecondition: one is another, or has other values.
        """
        for parameter, number, version in self._stepped:
            gradient = parameter.grad
            if gradient is None or id(gradient) != number or gradient._version != version:
                raise FailedPrecondition(
                    f"steps_in_backward: the gradient of parameter '{self._names[id(parameter)]}' was changed after "
                    "the backward pass (clipped, unscaled or cleared), which had stepped with it already; set "
                    "steps_in_backward = False for a program that does that"
                )

    def clear(self) -> None:
        """A step is over."""
        self.buckets.clear()
        self._stepped.clear()
        for final in self._final.values():
            final.clear()


class _GradientHook:
    """Tells an optimizer of gradients, for as long as somebody holds it. Threads: the trainer's. Owns: nothing."""

    def __init__(self, note: weakref.WeakMethod[Any]) -> None:
        self._note = note

    def __call__(self, parameter: torch.Tensor) -> None:
        note = self._note()
        if note is not None:
            note(parameter)
