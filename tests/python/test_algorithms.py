"""`pelton.algorithm`, `pelton.algorithms` and the page that is made of them."""

import copy
import inspect
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy
import pelton
import pytest
import torch
from pelton import _C
from pelton._algorithms import as_markdown, as_text
from pelton._training.algorithms._options import defaults_of, text_of, to_text
from pelton.errors import InvalidArgument
from pelton.torch_api.algorithms.base import (
    GlobalAlgorithmRegistry,
    NamedAlgorithm,
    RegisteredAlgorithm,
    RuntimeAlgorithm,
)
from pelton.torch_api.algorithms.diloco import DiLoCoAlgorithm
from pelton.torch_api.algorithms.gradient_allreduce import (
    GradientAllReduceAlgorithm,
    GradientAllReduceAlgorithmImpl,
)
from pelton.torch_api.algorithms.one_bit_adam import OneBitAdamOptimizer
from pelton.torch_api.algorithms.power_sgd import PowerSGDAlgorithmImpl
from pelton.torch_api.algorithms.q_adam import QAdamOptimizer
from pelton.torch_api.algorithms.zero_one_adam import ZeroOneAdamOptimizer
from pelton_run.command_line import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithm_options.md"


ENTRIES = {name: GlobalAlgorithmRegistry.entry(name) for name in GlobalAlgorithmRegistry.available_algorithms()}
CLASSES: dict[str, Any] = {
    name: make for name, (make, _) in ENTRIES.items() if inspect.isclass(make) and issubclass(make, NamedAlgorithm)
}
OPTIMIZERS: dict[str, Any] = {
    "qadam": QAdamOptimizer,
    "one_bit_adam": OneBitAdamOptimizer,
    "zero_one_adam": ZeroOneAdamOptimizer,
}


def runtime_of(name: str) -> str:
    """The algorithm of the runtime's behind a name."""
    return str(getattr(ENTRIES[name][0], "runtime_name", name))


def made_with(name: str, **options: Any) -> Any:
    """An algorithm, with its optimizer if it has one."""
    if name in OPTIMIZERS:
        options[f"{name}_optimizer".replace("qadam", "q_adam")] = OPTIMIZERS[name]([torch.zeros(2)])
    return pelton.algorithm(name, **options)


def described(name: str) -> pelton.AlgorithmDescription:
    return next(one for one in pelton.algorithms() if one.name == name)


def test_a_name_and_options_make_an_algorithm() -> None:
    made = pelton.algorithm("diloco", interval=32, outer_momentum=0.5)
    assert isinstance(made, DiLoCoAlgorithm)
    assert made.texts() == {"interval": "32", "outer_momentum": "0.5"}


def test_an_algorithm_of_the_runtime_alone_is_reached_by_its_name() -> None:
    made = pelton.algorithm("async_model_average", sync_interval_ms=20)
    assert isinstance(made, RuntimeAlgorithm)
    assert made.options == {"sync_interval_ms": 20}


@pytest.mark.parametrize(
    ("name", "options", "texts"),
    [
        ("diloko", {}, ["diloko", "diloco", "local_sgd"]),
        ("diloco", {"intervall": 3}, ["diloco", "intervall"]),
        ("diloco", {"interval": 0}, ["option interval is '0'", "a whole number of at least 1"]),
        ("diloco", {"interval": 10, "fragments": 3}, ["fragments is 3", "does not divide the interval"]),
        ("decentralized", {"peer_selection_mode": "ring"}, ["'ring'", "one of all, shift_one, random_matching"]),
        ("bytegrad", {"codec": "zip"}, ["option codec is 'zip'", "min_max_uint8"]),
        ("bytegrad", {"codec": "top_k", "codec_options": {"fraction": 2}}, ["'fraction' is unknown", "ratio"]),
        ("local_sgd", {"codec": "one_bit", "codec_options": {"x": 1}}, ["codec one_bit", "'x' is unknown", "block"]),
        ("slowmo", {"base": "circle"}, ["option base is 'circle'", "one of none, base"]),
        ("choco_sgd", {"error_feedback": True}, ["error_feedback", "part of the next in any case"]),
        ("diloco", {"codec_options": {"x": 1}}, ["codec.x is given, but option codec is 'none'"]),
        ("async_model_average", {"pause": 3}, ["option 'pause' is unknown", "sync_interval_ms"]),
        ("qadam", {}, ["qadam", "q_adam_optimizer"]),
        ("async", {"warmup": 3}, ["option 'warmup' is unknown", "sync_interval_ms", "warmup_steps"]),
        ("bytegrad", {"codec": "top_k", "codec_options": 3}, ["codec_options: must be a mapping", "is 3"]),
        (
            "bytegrad",
            {"codec": "one_bit", "codec_options": {"block": 64}, "codec.block": 32},
            ["codec.block: is given twice"],
        ),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_what_does(
    name: str, options: dict[str, object], texts: list[str]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        pelton.algorithm(name, **options)
    for text in texts:
        assert text in str(caught.value)


def graph_of(*edges: tuple[int, int, float | None], kind: type[networkx.Graph] = networkx.DiGraph) -> networkx.Graph:
    graph = kind()
    for source, target, weight in edges:
        graph.add_edge(source, target, **({} if weight is None else {"weight": weight}))
    return graph


@pytest.mark.parametrize(
    ("graph", "edges"),
    [
        (graph_of((1, 0, 0.25), (0, 1, 1 / 3), (1, 1, 0.75)), "0>0:0.0 0>1:0.3333333333333333 1>0:0.25 1>1:0.75"),
        (graph_of((0, 1, None), (1, 2, None), (2, 0, None)), "0>0 0>1 1>1 1>2 2>0 2>2"),
        (graph_of((0, 1, 0.5), (0, 0, 0.5), (1, 1, 0.5), kind=networkx.Graph), "0>0:0.5 0>1:0.5 1>0:0.5 1>1:0.5"),
    ],
)
def test_a_graph_by_hand_becomes_its_edges(graph: networkx.Graph, edges: str) -> None:
    made = pelton.algorithm("push_sum", graph=graph, interval=2)
    assert isinstance(made, RuntimeAlgorithm)
    assert to_text(**made.options) == {"graph": "given", "graph.edges": edges, "interval": "2"}
    assert to_text(base=graph) == {"base": "given", "base.edges": edges}


@pytest.mark.parametrize(
    ("graph", "texts"),
    [
        (graph_of((1, 2, None)), ["graph: has the nodes [1, 2]", "from 0 on"]),
        (networkx.DiGraph(), ["graph: has the nodes []"]),
        (networkx.MultiDiGraph([(0, 1), (0, 1)]), ["graph: a multigraph", "networkx.DiGraph"]),
        (graph_of((0, 1, 0.5), (1, 0, None)), ["graph: the edge 1 -> 0 has no weight, and 0 -> 1 has one"]),
        (graph_of((0, 1, "much")), ["graph: the edge 0 -> 1 has the weight 'much'"]),  # type: ignore[arg-type]
    ],
)
def test_a_graph_by_hand_that_is_none_over_ranks_is_an_error(graph: networkx.Graph, texts: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        pelton.algorithm("push_sum", graph=graph)
    for text in texts:
        assert text in str(caught.value)


def test_every_algorithm_tells_what_each_of_its_options_means() -> None:
    names = [one.name for one in pelton.algorithms()]
    assert names == GlobalAlgorithmRegistry.available_algorithms()
    for one in pelton.algorithms():
        assert one.summary, one.name
        for option in one.options:
            assert option.meaning, f"{one.name}: {option.name}"


def test_defaults_are_the_runtimes() -> None:
    options = {option.name: option for option in described("diloco").options}
    assert options["interval"].default == "100"
    assert options["mix"].default == "auto"
    assert options["interval"].values == "a whole number of at least 1"
    assert {option.name: option.default for option in described("bytegrad").options}["hierarchical"] == "true"
    assert {option.name: option.default for option in described("async").options}["warmup_steps"] == "0"


def test_a_class_has_the_runtimes_summary() -> None:
    of_runtime = dict(_C.algorithms())
    for name, (make, summary) in ENTRIES.items():
        if name in of_runtime or name == "async":  # the others change from one algorithm to another, and say so
            assert summary == of_runtime[getattr(make, "runtime_name", name)], name


def test_no_class_has_another_default_or_fewer_options_than_the_runtime() -> None:
    differing = []
    for name, make in CLASSES.items():
        parameters = inspect.signature(make).parameters
        takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        defaults = defaults_of(make.runtime_name)
        differing += [
            f"{name} cannot take {option}" for option in defaults if not takes_all and option not in parameters
        ]
        for option, parameter in parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD or option in make.own_arguments:
                continue
            if parameter.default is not None and text_of(parameter.default) != defaults.get(option):
                differing.append(f"{name}: {option} is {parameter.default}, the runtime's {defaults.get(option)}")
    assert not differing, "\n".join(differing)


def test_what_a_class_takes_beside_the_runtimes_options_the_runtime_has_not() -> None:
    for name, make in CLASSES.items():
        assert not set(make.own_arguments) & set(defaults_of(make.runtime_name)), name
        assert set(make.own_arguments) <= set(inspect.signature(make).parameters), name


def refusal_of(call: Callable[[], object]) -> str:
    """Why it is refused; "" if it is not."""
    try:
        call()
    except InvalidArgument as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ENTRIES)
def test_a_codec_is_taken_or_refused_with_the_runtimes_reason(name: str) -> None:
    runtime = runtime_of(name)
    reason = refusal_of(lambda: _C.check_algorithm(runtime, {"codec": "block_int4"}))
    assert refusal_of(lambda: made_with(name, codec="block_int4")) == reason
    takes = "codec" in defaults_of(runtime)
    assert takes == (reason == "") and (takes or "there is no option codec: " in reason)


@pytest.mark.parametrize("name", [name for name in ENTRIES if "codec" in defaults_of(runtime_of(name))])
def test_a_codecs_options_are_given_in_either_way(name: str) -> None:
    texts = {"codec": "block_int4", "codec.block": "64"}
    for options in ({"codec_options": {"block": 64}}, {"codec.block": 64}):
        assert texts.items() <= made_with(name, codec="block_int4", **options).texts().items()


def test_options_that_the_classes_do_not_name_reach_the_runtime() -> None:
    assert made_with("gradient_allreduce", scatter_gather=True).texts()["scatter_gather"] == "true"
    for name in ("qadam", "one_bit_adam", "zero_one_adam", "low_precision_decentralized"):
        assert made_with(name, error_feedback=False).texts()["error_feedback"] == "false"
    assert made_with("push_sum", graph_options={"seed": 3}, graph="random_pairs").texts()["graph.seed"] == "3"


def test_an_algorithm_may_be_copied_and_pickled() -> None:
    made: Any = pelton.algorithm("bytegrad", average=False, codec="block_int4", codec_options={"block": 64})
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(other) is type(made) and other.texts() == made.texts() and repr(other) == repr(made)
    assert repr(made) == "ByteGradAlgorithm(average=False, codec='block_int4', codec_options={'block': 64})"


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda whole: pickle.loads(pickle.dumps(whole))])
def test_a_copied_optimizer_steps_as_its_original(name: str, copied: Callable[[Any], Any]) -> None:
    options: dict[str, Any] = {"variance_updates": 2} if name == "zero_one_adam" else {"warmup_steps": 3}
    weight = torch.nn.Parameter(torch.arange(1.0, 9.0))
    optimizer = OPTIMIZERS[name]([weight], lr=0.1, variance_floor=0.5, **options)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)  # sets attributes of the optimizer

    def step(own: Any, i: int) -> Any:
        parameter = own.param_groups[0]["params"][0]
        parameter.grad = torch.sin(parameter.detach() * i)
        own.step()
        return parameter.detach().clone()

    step(optimizer, 1)
    other = copied(optimizer)
    assert other.param_groups[0]["params"][0] is not weight
    for i in range(2, 7):
        assert torch.equal(step(optimizer, i), step(other, i)), i


def test_a_class_derived_from_one_of_baguas_may_set_its_attributes() -> None:
    class Summing(GradientAllReduceAlgorithm):
        def __init__(self) -> None:
            self.average = False
            self.note = "no option"

    assert Summing().texts() == {"average": "false"}


def test_a_class_at_work_takes_its_arguments_after_the_group() -> None:
    group: Any = "a group"
    made = PowerSGDAlgorithmImpl(group, 3, start_round=1)
    assert (made.process_group, made.rank) == (group, 3)
    assert made.registered() == RegisteredAlgorithm("power_sgd", {"rank": "3", "start_round": "1"})
    assert list(inspect.signature(PowerSGDAlgorithmImpl).parameters) == ["process_group", "rank", "options"]


def test_algorithms_are_the_same_whether_or_not_defaults_are_named() -> None:
    plain = RegisteredAlgorithm("gradient_allreduce")
    assert plain == RegisteredAlgorithm("gradient_allreduce", {"average": "true", "hierarchical": "false"})
    assert plain != RegisteredAlgorithm("gradient_allreduce", {"average": "false"})
    assert plain != RegisteredAlgorithm("bytegrad")


def test_the_page_is_what_the_algorithms_say() -> None:
    assert PAGE.read_text() == as_markdown(), "run `pelton algorithms --markdown > docs/algorithm_options.md`"


def test_the_command_lists_one_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "local_sgd"]) == 0
    assert capsys.readouterr().out == as_text(described("local_sgd")) + "\n"
    assert main(["algorithms"]) == 0
    assert capsys.readouterr().out.count("\n    ") == sum(len(one.options) for one in pelton.algorithms())
    assert main(["algorithms", "ring"]) == 1
    assert "no algorithm 'ring'" in capsys.readouterr().err


def test_codecs_whose_rest_comes_late_are_warned_of_beside_outer_momentum() -> None:
    with pytest.warns(UserWarning, match="outer_momentum=0.9 builds up") as told:
        pelton.algorithm("diloco", codec="one_bit")
        thread = threading.Thread(target=pelton.algorithm, args=("diloco",), kwargs={"codec": "one_bit"})
        thread.start()
        thread.join()  # nothing of the thread's is the user's, so that the line is the one that waits here
    assert [warning.filename for warning in told] == [__file__, __file__]
    with pytest.warns(UserWarning, match="outer_momentum=0.9 builds up") as told:
        for file in ("<string>", "<eval_with_key>.0"):  # code without a module's name; and what torch.fx has made
            exec(compile("pelton.algorithm('diloco', codec='one_bit')", file, "exec"), {"pelton": pelton})
    assert [warning.filename for warning in told] == ["<string>", __file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pelton.algorithm("diloco", codec="top_k", outer_momentum=0)
        pelton.algorithm("diloco", codec="block_int4")


class _OfAUser(GradientAllReduceAlgorithmImpl):
    """As one is derived from Bagua's: it takes what it needs, and sets attributes."""

    def __init__(self, process_group: Any, average: bool) -> None:
        super().__init__(process_group)
        self.average = average


def test_what_a_derived_class_sets_counts() -> None:
    made = _OfAUser(None, average=False)
    assert made.registered() == RegisteredAlgorithm("gradient_allreduce", {"average": "false"})
    made.average = True
    assert made.registered() == RegisteredAlgorithm("gradient_allreduce", {})


def test_an_algorithm_at_work_has_the_options_of_when_it_was_put_to_work() -> None:
    codec_options = {"block": 64}
    algorithm = pelton.algorithm("diloco", interval=4, codec="block_int4", codec_options=codec_options)
    at_work = algorithm.reify(None)  # type: ignore[arg-type]
    codec_options["block"] = 128
    algorithm.interval = 8  # type: ignore[attr-defined]
    registered = at_work.registered()
    assert registered is not None
    assert (registered.options["interval"], registered.options["codec.block"]) == ("4", "64")
    algorithm.interval = -1  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match="interval is '-1'"):
        algorithm.reify(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, numpy.True_, numpy.int64(1), True])
def test_a_flag_may_be_a_number(value: Any) -> None:
    for made in (GradientAllReduceAlgorithm(hierarchical=value), pelton.algorithm("slowmo", hierarchical=value)):
        assert isinstance(made, RuntimeAlgorithm)
        assert made.texts()["hierarchical"] == "true"


def test_an_option_that_was_not_given_has_its_default() -> None:
    made: Any = pelton.algorithm("power_sgd")
    assert (made.start_round, made.rank) == (256, 2)
    made = pelton.algorithm("diloco")
    assert (made.outer_learning_rate, made.hierarchical, made.mix) == (0.7, True, None)
    with pytest.raises(AttributeError, match="'DiLoCoAlgorithm' object has no attribute 'intervall'"):
        _ = made.intervall


def test_a_derived_class_is_described_by_its_own_arguments() -> None:
    class Clipped(GradientAllReduceAlgorithm):
        """Has an option of its own, and none of the runtime's."""

        def __init__(self, limit: float = 0.5) -> None:
            """Args:
            limit: of each gradient.
            """
            super().__init__()
            self.limit = limit

    GlobalAlgorithmRegistry.register("clipped", Clipped, "clipped gradients")
    try:
        assert [(one.name, one.default, one.meaning) for one in described("clipped").options] == [
            ("limit", "0.5", "of each gradient.")
        ]
    finally:
        del GlobalAlgorithmRegistry._entries["clipped"]
