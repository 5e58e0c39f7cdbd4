"""Algorithms written in Python: what their hooks hear, and what becomes of the gradients."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pelton.torch_api as bagua
import torch
from pelton.errors import Aborted, InvalidArgument, PeltonError, Unsupported
from pelton.torch_api.algorithms import Algorithm, AlgorithmImpl
from pelton.torch_api.algorithms.gradient_allreduce import GradientAllReduceAlgorithm, GradientAllReduceAlgorithmImpl
from pelton.torch_api.bucket import BaguaBucket
from pelton.torch_api.communication import ReduceOp
from torch import nn

from cases.checks import (
    SHAPE,
    assert_same,
    assert_same_on_all_ranks,
    batch,
    expected,
    gradients,
    local_gradients,
    make_mlp,
    mean_of,
    raises,
    rank_and_size,
    run_backward,
    seeded,
    square_loss,
    wrap,
)
from cases.registry import case


class Written(Algorithm):
    """An algorithm whose implementation is made by a function."""

    def __init__(self, make: Callable[[Any], AlgorithmImpl]) -> None:
        self.make = make

    def reify(self, process_group: Any) -> AlgorithmImpl:
        return self.make(process_group)


class Centralized(AlgorithmImpl):
    """The documentation's example: what gradient allreduce is, with a bucket per tensor."""

    def tensors_to_buckets(self, tensors: Any, do_flatten: bool) -> Any:
        each = [tensor for group in tensors for tensor in group]
        return [BaguaBucket([tensor], f"of {tensor.bagua_tensor_name}", do_flatten) for tensor in each]

    def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
        bucket.clear_ops()
        bucket.append_centralized_synchronous_op(average=True, group=self.process_group)


class InPython(AlgorithmImpl):
    """An allreduce of the user's own, in a Python operation."""

    def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
        def average(_name: str) -> None:
            communicator = self.process_group.get_global_communicator()
            for tensor in bucket.tensors:
                bagua.allreduce_inplace(tensor.bagua_getter_closure(), op=ReduceOp.AVG, comm=communicator)

        bucket.clear_ops()
        bucket.append_python_op(average, group=self.process_group)


class Both(AlgorithmImpl):
    """A sum by the runtime, between two Python operations of which one divides and one counts."""

    def __init__(self, process_group: Any) -> None:
        super().__init__(process_group)
        self.calls: list[str] = []

    def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
        def divide(_name: str) -> None:
            for tensor in bucket.tensors:
                gradient = tensor.bagua_getter_closure()
                tensor.bagua_setter_closure(gradient / len(self.process_group.ranks))

        bucket.append_python_op(self.calls.append)
        bucket.append_centralized_synchronous_op(average=False)
        bucket.append_python_op(divide)


@case(2, 3)
def gradients_are_those_of_the_built_in_allreduce() -> None:
    rank, size = rank_and_size()
    for flatten in (True, False):
        for make in (Centralized, InPython, Both):
            model = seeded(rank, make_mlp)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            model.with_bagua([optimizer], Written(make), do_flatten=flatten)
            reference = seeded(0, make_mlp)
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
            wrap(reference, [reference_optimizer])
            for step, to_none in enumerate((True, True, False, True)):
                for each in (optimizer, reference_optimizer):
                    each.zero_grad(set_to_none=to_none)
                run_backward(model, step)
                run_backward(reference, step)
                assert_same(gradients(model), gradients(reference))
                optimizer.step()
                reference_optimizer.step()
            assert model.bagua_ddp.bagua_train_step_counter == 4
            assert model.bagua_ddp.statistics()["rounds"] == 4
            assert all(map(torch.equal, model.parameters(), reference.parameters()))
    assert size == len(model.bagua_ddp.process_group.ranks)


@case(2)
def the_documentations_example() -> None:
    text = (Path(__file__).parents[3] / "docs" / "writing_an_algorithm_in_python.md").read_text()
    names: dict[str, Any] = {}
    exec(compile(text.split("```python\n")[1].split("```")[0], "documentation", "exec"), names)
    rank, size = rank_and_size()
    model, reference = seeded(rank, make_mlp), seeded(0, make_mlp)
    wanted = [parameter.detach().clone() for parameter in reference.parameters()]

    def loss_of(r: int) -> Any:
        return lambda model, inputs: nn.functional.mse_loss(model(inputs), batch(r, 9, 4, 3))

    per_rank = [local_gradients(reference, batch(r, 0, *SHAPE), loss_of(r)) for r in range(size)]
    clipped = [{name: gradient.clamp(-0.01, 0.01) for name, gradient in found.items()} for found in per_rank]
    assert any(not torch.equal(a[name], b[name]) for a, b in zip(clipped, per_rank) for name in a)
    names["train"](model, [(batch(rank, 0, *SHAPE), batch(rank, 9, 4, 3))])
    for before, parameter, gradient in zip(wanted, model.parameters(), mean_of(clipped).values()):
        assert torch.equal(parameter, torch.add(before, gradient, alpha=-0.1))


@case(2)
def a_class_derived_from_a_built_in_one_works_by_its_hooks() -> None:
    heard: list[str] = []

    class Listening(GradientAllReduceAlgorithmImpl):
        def init_backward_hook(self, bagua_ddp: Any) -> Any:
            mark = super().init_backward_hook(bagua_ddp)

            def hook(name: str, parameter: Any) -> None:
                heard.append(name)
                mark(name, parameter)

            return hook

    model = seeded(bagua.get_rank(), lambda: nn.Linear(6, 3)).with_bagua([], Written(Listening))
    run_backward(model)
    assert_same(gradients(model), expected(lambda: nn.Linear(6, 3)))
    assert sorted(heard) == ["bias", "weight"], heard  # parameters of the root module, by their own names


class _Branches(nn.Module):
    """Uses only the branches that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))
        self.used: tuple[int, ...] = (0, 1, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.branches[i](inputs) for i in self.used]).sum(0)


@case(2, 3)
def unused_parameters_block_nothing() -> None:
    rank, _ = rank_and_size()
    model = seeded(rank, _Branches).with_bagua([], Written(Centralized))
    reference = wrap(seeded(0, _Branches))
    in_python = seeded(rank, _Branches).with_bagua([], Written(InPython))
    for step, used in enumerate(((0, 1) if rank == 0 else (0,), (2,), (0, 1, 2))):
        for each in (model, reference, in_python):
            each.used = used
            each.zero_grad(set_to_none=True)
            run_backward(each, step)
        wanted = gradients(reference)
        assert_same(gradients(model), wanted)
        # Only an allreduce of the runtime's can say that no rank has used a parameter.
        zeros = {name: torch.zeros_like(p) for name, p in reference.named_parameters()}
        assert_same(gradients(in_python), {n: zeros[n] if g is None else g for n, g in wanted.items()})


@case(2)
def no_sync_accumulates() -> None:
    rank, size = rank_and_size()
    heard: list[str] = []

    class Listening(Centralized):
        def init_forward_pre_hook(self, bagua_ddp: Any) -> Any:
            return lambda inputs: heard.append(f"forward of {len(inputs)}")

    model, reference = seeded(rank, make_mlp).with_bagua([], Written(Listening)), seeded(0, make_mlp)
    model.zero_grad()
    with model.no_sync():
        run_backward(model, 0)
        assert heard == []
    once = [local_gradients(reference, batch(r, 0, *SHAPE)) for r in range(size)]
    assert_same(gradients(model), once[rank])
    run_backward(model, 1)
    again = [local_gradients(reference, batch(r, 1, *SHAPE)) for r in range(size)]
    sums = [{name: a[name] + b[name] for name in a} for a, b in zip(once, again)]
    assert_same(gradients(model), mean_of(sums))
    assert heard == ["forward of 1"]


@case(2)
def hooks_are_called_in_order() -> None:
    heard: list[str] = []

    class Listening(Centralized):
        def init_forward_pre_hook(self, bagua_ddp: Any) -> Any:
            return lambda inputs: heard.append("forward")

        def init_post_backward_hook(self, bagua_ddp: Any) -> Any:
            def hook() -> None:
                heard.append("post-backward")
                heard.append(str(bagua_ddp._bagua_backend.wait_pending_comm_ops()))

            return hook

        def init_post_optimizer_step_hook(self, bagua_ddp: Any) -> Any:
            return lambda optimizer: heard.append(type(optimizer).__name__)

    model = make_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.with_bagua([optimizer], Written(Listening))
    model.eval()
    model(batch(0, 0, *SHAPE))
    assert heard == []
    model.train()
    for _ in range(2):
        run_backward(model)
        optimizer.step()
    assert heard == ["forward", "post-backward", "4", "SGD"] * 2, heard
    assert [bucket.name for bucket in model.bagua_buckets] == ["of 2.bias", "of 2.weight", "of 0.bias", "of 0.weight"]


class _Phases(Centralized):
    """Sums at first, then averages."""

    def __init__(self, process_group: Any) -> None:
        super().__init__(process_group)
        self.asked = 0
        self.average = False

    def need_reset(self) -> bool:
        self.asked += 1
        self.average = self.average or self.asked == 3
        return self.asked == 3

    def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
        bucket.clear_ops()
        bucket.append_centralized_synchronous_op(average=self.average)


@case(2)
def need_reset_begins_anew() -> None:
    rank, size = rank_and_size()
    model, reference = seeded(rank, make_mlp).with_bagua([], Written(_Phases)), seeded(0, make_mlp)
    for step in range(4):
        model.eval()
        model(batch(rank, step, *SHAPE))  # is no step
        model.train()
        model.zero_grad()
        buckets = list(model.bagua_buckets)
        run_backward(model, step)
        per_rank = [local_gradients(reference, batch(r, step, *SHAPE)) for r in range(size)]
        assert_same(gradients(model), mean_of(per_rank, average=step >= 2))
        assert (model.bagua_buckets[0] is buckets[0]) == (step != 2)
    assert model.bagua_algorithm.asked == 4


class _Refused(Exception):
    """What the tests' functions raise."""


def _check_failure(algorithm: AlgorithmImpl, text: str, steps: bool = False) -> None:
    """Rank 1's exception reaches its trainer as it is, and the other ranks with rank and place."""
    rank, _ = rank_and_size()
    model = make_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.with_bagua([optimizer], Written(lambda group: algorithm))
    raised: BaseException | None = None
    try:
        for step in range(3):
            run_backward(model, step)
            optimizer.step()
    except (_Refused, PeltonError) as error:
        raised = error
    if rank == 1:
        assert raised is _refused, repr(raised)
        with raises(_Refused):  # nothing goes on
            model(batch(0, 0, *SHAPE))
    else:
        assert isinstance(raised, PeltonError), repr(raised)
        assert "rank 1" in str(raised), raised
        assert text in str(raised), raised
        assert "_Refused: as the test wants it" in str(raised), raised


_refused = _Refused("as the test wants it")


def _refuse(*_arguments: Any) -> None:
    if bagua.get_rank() == 1:
        raise _refused


@case(2, 3)
def an_exception_in_a_python_operation() -> None:
    class Failing(Centralized):
        def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
            super().init_operations(bagua_ddp, bucket)
            if bucket.name == "of 0.bias":
                bucket.append_python_op(_refuse)

    algorithm = Failing(bagua.communication._get_default_group())
    _check_failure(algorithm, "Python operation '_refuse' of bucket 'of 0.bias'")


class _Calling(Centralized):
    """Calls a function of the test's before each bucket's average."""

    def __init__(self, process_group: Any, function: Callable[[str], None]) -> None:
        super().__init__(process_group)
        self.function = function

    def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
        bucket.clear_ops()
        bucket.append_python_op(self.function, group=self.process_group)
        bucket.append_centralized_synchronous_op(average=True, group=self.process_group)


@case(2)
def a_python_operation_that_never_returns_is_named_at_the_deadline() -> None:
    rank, _ = rank_and_size()
    bagua.destroy_process_group()
    bagua.init_process_group(timeout=3)
    release = threading.Event()

    def hang(_name: str) -> None:
        if rank == 1:
            release.wait(200)

    model = make_mlp().with_bagua([], Written(lambda group: _Calling(group, hang)))
    try:
        begun = time.monotonic()
        with raises(PeltonError, ".hang' of bucket 'of 2.bias'" if rank == 1 else "rank 1"):
            run_backward(model)
        ended = time.monotonic()
        assert ended - begun < 60
        with contextlib.suppress(PeltonError):
            bagua.destroy_process_group()
        assert time.monotonic() - ended < 60, "the end waits for the function"
    finally:
        release.set()


@case(2)
def a_python_operation_that_waits_for_its_own_round_is_an_error() -> None:
    def wait(_name: str) -> None:
        if bagua.get_rank() == 1:
            model.bagua_ddp._bagua_backend.wait_pending_comm_ops()

    model = make_mlp().with_bagua([], Written(lambda group: _Calling(group, wait)))
    with raises(PeltonError, "ends only after the operation has returned"):
        run_backward(model)


@case(2)
def a_python_operation_that_sleeps_holds_up_no_other_group() -> None:
    rank, size = rank_and_size()
    other = bagua.new_group([0, 1]).get_global_communicator()
    entered, may_return = threading.Event(), threading.Event()
    threads: list[str] = []

    def sleep(_name: str) -> None:
        threads.append(threading.current_thread().name)
        entered.set()
        assert may_return.wait(100), "the other group stands"

    def use_other_group() -> None:
        assert entered.wait(100)
        for _ in range(5):
            tensor = torch.full((10,), float(rank))
            bagua.allreduce_inplace(tensor, op=ReduceOp.SUM, comm=other)
            assert tensor.unique().tolist() == [size * (size - 1) / 2]
        may_return.set()

    model = seeded(rank, make_mlp).with_bagua([], Written(lambda group: _Calling(group, sleep)))
    beside = threading.Thread(target=use_other_group)
    beside.start()
    run_backward(model)
    beside.join()
    assert_same(gradients(model), expected(make_mlp))
    assert len(threads) == len(list(model.parameters()))
    assert threading.current_thread().name not in threads


@case(2)
def an_exception_in_the_forward_hook() -> None:
    algorithm = Centralized(bagua.communication._get_default_group())
    algorithm.init_forward_pre_hook = lambda bagua_ddp: _refuse  # type: ignore[method-assign]
    _check_failure(algorithm, "the forward hook")


@case(2)
def an_exception_in_the_backward_hook() -> None:
    algorithm = Centralized(bagua.communication._get_default_group())
    mark = algorithm.init_backward_hook

    def init(bagua_ddp: Any) -> Any:
        ready = mark(bagua_ddp)
        return lambda name, parameter: _refuse() if name == "0.bias" else ready(name, parameter)

    algorithm.init_backward_hook = init  # type: ignore[method-assign]
    _check_failure(algorithm, "the backward hook of '0.bias'")


@case(2)
def an_exception_in_the_post_backward_hook() -> None:
    algorithm = Centralized(bagua.communication._get_default_group())
    wait = algorithm.init_post_backward_hook

    def init(bagua_ddp: Any) -> Any:
        def hook() -> None:
            _refuse()
            wait(bagua_ddp)()

        return hook

    algorithm.init_post_backward_hook = init  # type: ignore[method-assign]
    _check_failure(algorithm, "the post-backward hook")


@case(2)
def an_exception_in_the_post_step_hook() -> None:
    algorithm = Centralized(bagua.communication._get_default_group())
    algorithm.init_post_optimizer_step_hook = lambda bagua_ddp: _refuse  # type: ignore[method-assign]
    _check_failure(algorithm, "the post-step hook")


@case(2)
def an_exception_while_the_algorithm_is_asked() -> None:
    for hook in ("init_tensors", "tensors_to_buckets", "init_backward_hook", "init_operations"):
        algorithm = Centralized(bagua.communication._get_default_group())
        if bagua.get_rank() == 1:
            setattr(algorithm, hook, _refuse)
        kind: type[Exception] = _Refused if bagua.get_rank() == 1 else InvalidArgument
        with raises(kind, "as the test wants it"):
            make_mlp().with_bagua([], Written(lambda group, made=algorithm: made))  # type: ignore[misc]


@case(2)
def algorithms_that_say_nothing_are_refused() -> None:
    with raises(Unsupported, "init_operations"):
        make_mlp().with_bagua([], Written(AlgorithmImpl))
    with raises(PeltonError, "low precision decentralized operation of bucket '0'"):

        class Unknown(AlgorithmImpl):
            def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
                weight, left, right = (bucket.flattened_tensor() for _ in range(3))
                bucket.append_low_precision_decentralized_synchronous_op(
                    weight, left, right, compression="no_such_codec"
                )

        make_mlp().with_bagua([], Written(Unknown))


@case(2)
def another_algorithm_takes_over() -> None:
    rank, size = rank_and_size()
    model, reference = seeded(rank, make_mlp), seeded(0, make_mlp)
    for step, algorithm in enumerate((Written(InPython), GradientAllReduceAlgorithm(), Written(Centralized))):
        model.with_bagua([], algorithm)
        model.zero_grad()
        run_backward(model, step)
        per_rank = [local_gradients(reference, batch(r, step, *SHAPE)) for r in range(size)]
        assert_same(gradients(model), mean_of(per_rank))


@case(2)
def gradients_outlive_the_group_and_copies_are_plain() -> None:
    model = seeded(bagua.get_rank(), make_mlp).with_bagua([], Written(Centralized))
    run_backward(model)
    kept = gradients(model)
    copied = copy.deepcopy(model)
    assert not any(parameter.is_bagua_tensor() for parameter in copied.parameters())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for plain in (copied, loaded):
        plain.zero_grad()
        square_loss(plain, batch(0, 0, *SHAPE)).backward()
    bagua.destroy_process_group()
    assert_same(gradients(model), kept)
    assert not any(parameter.is_bagua_tensor() for parameter in model.parameters())


@case(2)
def parameters_that_change_are_registered_anew() -> None:
    rank, size = rank_and_size()
    model, reference = seeded(rank, make_mlp).with_bagua([], Written(Centralized)), seeded(0, make_mlp)
    model.double()
    reference.double()
    model.zero_grad()
    square_loss(model, batch(rank, 0, *SHAPE, dtype=torch.float64)).backward()
    per_rank = [local_gradients(reference, batch(r, 0, *SHAPE, dtype=torch.float64)) for r in range(size)]
    assert_same(gradients(model), mean_of(per_rank))


class _OfWeights(AlgorithmImpl):
    """Communicates the weights, from before the forward pass on."""

    def init_tensors(self, bagua_ddp: Any) -> Any:
        named: Any = reversed(bagua_ddp.bagua_build_params())
        self.tensors = [p.ensure_bagua_tensor(name, bagua_ddp.bagua_module_name) for name, p in named]
        return self.tensors

    def init_forward_pre_hook(self, bagua_ddp: Any) -> Any:
        def hook(_inputs: Any) -> None:
            for tensor in self.tensors:
                tensor.bagua_mark_communication_ready()

        return hook

    def init_backward_hook(self, bagua_ddp: Any) -> Any:
        return lambda name, parameter: None

    def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
        bucket.append_centralized_synchronous_op(average=True)


@case(2)
def weights_lie_in_the_buckets_and_are_averaged() -> None:
    rank, _ = rank_and_size()
    model = seeded(0, make_mlp).with_bagua([], Written(_OfWeights))
    (bucket,) = model.bagua_buckets
    assert bucket.check_flatten()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(rank)
    model(batch(rank, 0, *SHAPE))  # no backward pass follows: the next forward pass completes the round
    run_backward(model, 1)
    assert_same_on_all_ranks(list(model.parameters()))
    assert all(bool((parameter == 0.5).all()) for parameter in model.parameters())
    assert bucket.check_flatten()
    run_backward(model, 2)
    assert model.bagua_ddp.statistics()["rounds"] == 3


class _InTwoBuckets(_OfWeights):
    """The weights' last bucket ends in an error on one rank, when the first is averaged already."""

    fails = False

    def tensors_to_buckets(self, tensors: Any, do_flatten: bool) -> Any:
        each = [tensor for group in tensors for tensor in group]
        return [BaguaBucket(each[:2], "first", do_flatten), BaguaBucket(each[2:], "last", do_flatten)]

    def init_operations(self, bagua_ddp: Any, bucket: BaguaBucket) -> None:
        def fail(_name: str) -> None:
            if self.fails and bagua.get_rank() == 1:
                raise ValueError("the user's own")

        if bucket.name == "last":
            bucket.append_python_op(fail)  # before the mean, which the other rank cannot have without this one
        super().init_operations(bagua_ddp, bucket)


@case(2)
def weights_are_what_they_were_after_a_round_that_failed() -> None:
    """COMMIT-1: not averaged in one bucket and each rank's own in the other."""
    rank, _ = rank_and_size()
    model = seeded(0, make_mlp).with_bagua([], Written(_InTwoBuckets))
    assert all(bucket.check_flatten() for bucket in model.bagua_buckets)
    run_backward(model)
    model.bagua_ddp.finish_round()
    with contextlib.suppress(
        Aborted
    ):  # the failure to come must not end the other rank's first round, but may end this
        bagua.barrier()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(rank)
    model.bagua_algorithm.fails = True
    with raises(Exception, "the user's own"):
        model(batch(rank, 0, *SHAPE))
        model.bagua_ddp.finish_round()
    for parameter in model.parameters():
        assert bool((parameter == rank).all()), parameter
