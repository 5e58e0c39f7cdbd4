"""The accelerator of these tests against the CPU: values, and which streams an operator waits for."""

from __future__ import annotations

import copy
import ctypes
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import accelerator
import torch
from torch import nn

from cases.registry import case

DEVICE = "standin:0"
WAIT_S = 30
COPY_DEFAULT = 4  # cudaMemcpyDefault
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def _net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 + step)
    return torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,))


def _step(model: Any, step: int) -> torch.Tensor:
    device = next(model.parameters()).device
    inputs, targets = (tensor.to(device) for tensor in _batch(step))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss.detach()


def _assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device == torch.device(DEVICE), actual.device
    assert torch.equal(actual.cpu(), expected), (actual.cpu() - expected).abs().max()


def _train(make_optimizer: MakeOptimizer, set_to_none: bool = True, accumulate: int = 1, clip: bool = False) -> None:
    """The same steps on the device and on the CPU."""
    models = [_net(), _net().to(DEVICE)]
    optimizers = [make_optimizer(model.parameters()) for model in models]
    for step in range(3):
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad(set_to_none=set_to_none)
            for part in range(accumulate):
                _step(model, step * accumulate + part)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    expected, actual = (model.state_dict() for model in models)
    for name, value in expected.items():
        _assert_same(actual[name], value)


@case(1)
def sgd_trains_as_on_the_cpu() -> None:
    _train(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01))


@case(1)
def adam_trains_as_on_the_cpu() -> None:
    _train(lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    _train(lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=False))


@case(1)
def gradients_may_be_kept_accumulated_and_clipped() -> None:
    _train(lambda parameters: torch.optim.SGD(parameters, lr=0.1), set_to_none=False)
    _train(lambda parameters: torch.optim.SGD(parameters, lr=0.1), accumulate=3)
    _train(lambda parameters: torch.optim.SGD(parameters, lr=0.1), clip=True)


@case(1)
def losses_and_gradients_are_those_of_the_cpu() -> None:
    reference = _net()
    model = copy.deepcopy(reference).to(DEVICE)
    _assert_same(_step(model, 0), _step(reference, 0))
    for actual, expected in zip(model.parameters(), reference.parameters()):
        assert actual.grad is not None and expected.grad is not None
        _assert_same(actual.grad, expected.grad)


@case(1)
def factories_and_views() -> None:
    rows = torch.arange(6.0, device=DEVICE).reshape(2, 3)
    expected = torch.arange(6.0).reshape(2, 3)
    _assert_same(rows, expected)
    _assert_same(rows.t()[1:], expected.t()[1:])
    _assert_same(rows.t().contiguous().view(-1), expected.t().contiguous().view(-1))
    _assert_same(rows[:, 1].expand(3, 2), expected[:, 1].expand(3, 2))
    rows[:, 1] = 7  # through a view that is not dense
    expected[:, 1] = 7
    _assert_same(rows, expected)
    _assert_same(rows.double().sum(), expected.double().sum())
    assert rows.max().item() == 7 and rows.t().data_ptr() == rows.data_ptr()
    assert torch.empty(3, device=DEVICE).isnan().all()
    assert torch.zeros(0, device=DEVICE).sum().item() == 0


@case(1)
def storages_are_shared_swapped_and_resized() -> None:
    shared = torch.ones(4, device=DEVICE)
    own: Any = torch.zeros(2, 2, device=DEVICE)
    own.set_(shared.untyped_storage(), 2, (2,))
    own += 1
    _assert_same(shared, torch.tensor([1.0, 1, 2, 2]))
    own.set_(shared)
    assert own.data_ptr() == shared.data_ptr() and own.shape == (4,)
    own.resize_(6)
    own[4:] = 3
    _assert_same(own, torch.tensor([1.0, 1, 2, 2, 3, 3]))
    own.set_()
    assert own.numel() == 0
    parameter = nn.Parameter(torch.zeros(4, device=DEVICE))
    parameter.data = shared
    assert parameter.data_ptr() == shared.data_ptr()


@case(1)
def numbers_are_drawn_as_on_the_cpu() -> None:
    torch.manual_seed(3)
    drawn = torch.randn(5, device=DEVICE)
    torch.manual_seed(3)
    _assert_same(drawn, torch.randn(5))
    draw = [torch.rand(5, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(4)) for _ in range(2)]
    _assert_same(draw[0], draw[1].cpu())


@case(1)
def a_state_is_saved_and_loaded() -> None:
    model = _net().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    _step(model, 0)
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    for place in (DEVICE, "cpu"):
        file.seek(0)
        state = torch.load(file, map_location=place)
        other = _net().to(DEVICE)
        other.load_state_dict(state["model"])
        torch.optim.Adam(other.parameters()).load_state_dict(state["optimizer"])
        for name, value in model.state_dict().items():
            assert state["model"][name].device == torch.device(place)
            _assert_same(other.state_dict()[name], value.cpu())


@case(1)
def the_module_is_that_of_an_accelerator() -> None:
    device: Any = torch.get_device_module("standin")
    assert device.device_count() == accelerator.DEVICE_COUNT and device.is_available()
    assert (device.current_device(), torch.zeros(1, device="standin").device.index) == (0, 0)
    with device.device("standin:1"):
        assert torch.zeros(1, device="standin").device.index == 1
    assert torch.accelerator.current_accelerator() == torch.device("standin")
    assert torch.zeros(1).to("standin:1").to(DEVICE).is_standin  # type: ignore[attr-defined]


class _Runtime:
    """The stand-in's own interface, as a library beside PyTorch uses it."""

    def __init__(self) -> None:
        self.calls = ctypes.CDLL(os.environ["PELTON_CUDART_LIBRARY"])
        self._kept: list[Any] = []

    def new_stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        assert self.calls.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
        return stream

    def current_stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(accelerator.load().current_stream_handle(0))

    def synchronize(self, stream: ctypes.c_void_p) -> None:
        assert self.calls.cudaStreamSynchronize(stream) == 0

    def make_wait(self, stream: ctypes.c_void_p, on: ctypes.c_void_p) -> None:
        """Puts what comes on `stream` after what is on `on`."""
        event = ctypes.c_void_p()
        assert self.calls.cudaEventCreateWithFlags(ctypes.byref(event), 2) == 0
        assert self.calls.cudaEventRecord(event, on) == 0
        assert self.calls.cudaStreamWaitEvent(stream, event, 0) == 0
        assert self.calls.cudaEventDestroy(event) == 0

    def hold(self, stream: ctypes.c_void_p) -> threading.Event:
        """Nothing that is put on the stream from now on begins before the event is set."""
        gate = threading.Event()
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(WAIT_S) and None)
        self._kept.append(function)
        assert self.calls.cudaLaunchHostFunc(stream, function, None) == 0
        return gate

    def write(self, stream: ctypes.c_void_p, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Puts a copy on the stream."""
        self._kept.append(value)
        target, source = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(value.data_ptr())
        size_bytes = ctypes.c_size_t(value.numel() * value.element_size())
        assert self.calls.cudaMemcpyAsync(target, source, size_bytes, COPY_DEFAULT, stream) == 0


@contextmanager
def _set_later(gate: threading.Event) -> Iterator[None]:
    """Sets it while the body waits, and not before it has had the time to go on wrongly."""
    timer = threading.Timer(0.2, gate.set)
    timer.start()
    try:
        yield
    finally:
        timer.join()


READERS: dict[str, Callable[[torch.Tensor], float]] = {
    "cpu": lambda tensor: float(tensor.cpu()[0]),
    "item": lambda tensor: tensor[0].item(),
    "sum": lambda tensor: tensor.sum().item() / tensor.numel(),
    "into another": lambda tensor: torch.zeros(4).copy_(tensor)[3].item(),
    "matrix product": lambda tensor: (tensor.view(1, 4) @ tensor.view(4, 1)).item() / 4,
    "another device": lambda tensor: tensor.to("standin:1").cpu()[0].item(),
}


@case(1)
def an_operator_waits_for_the_current_stream() -> None:
    runtime, ones = _Runtime(), torch.ones(4)
    for stream in (torch.accelerator.current_stream(DEVICE), torch.Stream(device=DEVICE)):
        for name, read in READERS.items():
            tensor = torch.zeros(4, device=DEVICE)
            torch.accelerator.synchronize()
            with stream:
                gate = runtime.hold(runtime.current_stream())
                runtime.write(runtime.current_stream(), tensor, ones)
                with _set_later(gate):
                    assert read(tensor) == 1, name


@case(1)
def an_operator_waits_for_what_the_current_stream_waits_for() -> None:
    runtime, ones, other = _Runtime(), torch.ones(4), _Runtime().new_stream()
    tensor = torch.zeros(4, device=DEVICE)
    torch.accelerator.synchronize()
    gate = runtime.hold(other)
    runtime.write(other, tensor, ones)
    runtime.make_wait(runtime.current_stream(), on=other)
    with _set_later(gate):
        assert (tensor + tensor).cpu()[0].item() == 2


@case(1)
def an_operator_does_not_wait_for_other_streams() -> None:
    runtime, ones, other = _Runtime(), torch.ones(4), _Runtime().new_stream()
    tensor = torch.zeros(4, device=DEVICE)
    torch.accelerator.synchronize()
    gate = runtime.hold(other)
    runtime.write(other, tensor, ones)
    for name, read in READERS.items():
        assert read(tensor) == 0, name
    gate.set()
    runtime.synchronize(other)
    assert tensor.cpu()[0].item() == 1


@case(1)
def what_an_operator_writes_comes_in_the_order_of_its_stream() -> None:
    runtime, other = _Runtime(), _Runtime().new_stream()
    tensor, seen = torch.zeros(4, device=DEVICE), torch.zeros(4)
    torch.accelerator.synchronize()
    current = runtime.current_stream()
    value = torch.ones(4)
    gate = runtime.hold(current)
    tensor.copy_(value)  # the host goes on
    value.zero_()
    assert runtime.calls.cudaStreamQuery(current) != 0
    source, target = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(seen.data_ptr())
    for expected in (0, 1):  # at first nobody makes the other stream wait
        if expected == 1:
            runtime.make_wait(other, on=current)
            gate.set()
        assert runtime.calls.cudaMemcpyAsync(target, source, ctypes.c_size_t(16), COPY_DEFAULT, other) == 0
        runtime.synchronize(other)
        assert seen[0].item() == expected


@case(1)
def synchronizing_the_device_waits_for_all_streams() -> None:
    runtime, ones = _Runtime(), torch.ones(4)
    tensor = torch.zeros(4, device=DEVICE)
    torch.accelerator.synchronize()
    for stream in (runtime.current_stream(), runtime.new_stream()):
        gate = runtime.hold(stream)
        runtime.write(stream, tensor, ones)
        with _set_later(gate):
            torch.accelerator.synchronize()
            assert gate.is_set() and runtime.calls.cudaStreamQuery(stream) == 0


@case(1)
def events_order_streams() -> None:
    runtime, ones = _Runtime(), torch.ones(4)
    side = torch.Stream(device=DEVICE)
    tensor = torch.zeros(4, device=DEVICE)
    torch.accelerator.synchronize()
    with side:
        gate = runtime.hold(runtime.current_stream())
        runtime.write(runtime.current_stream(), tensor, ones)
        event = side.record_event()
    assert not event.query() and not side.query()
    torch.accelerator.current_stream(DEVICE).wait_event(event)
    with _set_later(gate):
        assert tensor.cpu()[0].item() == 1
    event.synchronize()
    side.synchronize()
    assert event.query() and side.query()


@case(1)
def backward_runs_on_the_stream_of_forward() -> None:
    runtime = _Runtime()
    handles: list[int | None] = []
    with torch.Stream(device=DEVICE):
        expected = runtime.current_stream().value
        weight = torch.ones(3, device=DEVICE, requires_grad=True)
        weight.register_hook(lambda gradient: handles.append(runtime.current_stream().value))
        (weight * weight).sum().backward()
        assert weight.grad is not None
        _assert_same(weight.grad, torch.full((3,), 2.0))
    assert handles == [expected] and expected is not None


@case(1)
def memory_outlives_what_its_stream_still_does_with_it() -> None:
    runtime, other = _Runtime(), _Runtime().new_stream()
    source, seen = torch.ones(4, device=DEVICE), torch.zeros(4)
    torch.accelerator.synchronize()
    current = runtime.current_stream()
    gate = runtime.hold(other)
    runtime.make_wait(current, on=other)
    address = ctypes.c_void_p(source.data_ptr())
    assert (
        runtime.calls.cudaMemcpyAsync(ctypes.c_void_p(seen.data_ptr()), address, ctypes.c_size_t(16), 4, current) == 0
    )
    del source
    gate.set()
    runtime.synchronize(current)
    assert seen.tolist() == [1, 1, 1, 1]


@case(1)
def memory_of_others_can_be_a_tensor() -> None:
    runtime = _Runtime()
    memory = ctypes.c_void_p()
    assert runtime.calls.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(32)) == 0
    tensor = accelerator.load().from_address(memory.value, [2, 4], 0)
    _assert_same(tensor, torch.zeros(2, 4))
    tensor.add_(1)
    parameter = nn.Parameter(torch.zeros(4, device=DEVICE))
    parameter.grad = tensor[1]
    (parameter * 2).sum().backward()
    _assert_same(tensor, torch.tensor([[1.0] * 4, [3.0] * 4]))
    torch.accelerator.synchronize()
    assert runtime.calls.cudaFree(memory) == 0
