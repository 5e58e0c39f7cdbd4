"""`pelton.algorithm`, `pelton.algorithms` and the page that is made of them."""

import warnings
from pathlib import Path

import networkx
import pelton
import pytest
from pelton._algorithms import as_markdown, as_text
from pelton._training.algorithms._options import to_text
from pelton.errors import InvalidArgument
from pelton.torch_api.algorithms.base import GlobalAlgorithmRegistry, RuntimeAlgorithm
from pelton.torch_api.algorithms.diloco import DiLoCoAlgorithm
from pelton_run.command_line import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithm_options.md"


def described(name: str) -> pelton.AlgorithmDescription:
    return next(one for one in pelton.algorithms() if one.name == name)


def test_a_name_and_options_make_an_algorithm() -> None:
    made = pelton.algorithm("diloco", interval=32, outer_momentum=0.5)
    assert isinstance(made, DiLoCoAlgorithm)
    assert made.options["interval"] == "32" and made.options["outer_momentum"] == "0.5"


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


def test_defaults_are_those_of_the_class_or_of_the_runtime() -> None:
    options = {option.name: option for option in described("diloco").options}
    assert options["interval"].default == "100"
    assert options["mix"].default == "auto"  # the class leaves it to the runtime
    assert options["interval"].values == "a whole number of at least 1"
    assert {option.name: option.default for option in described("bytegrad").options}["hierarchical"] == "True"


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
    with pytest.warns(UserWarning, match="outer_momentum=0.9 builds up"):
        pelton.algorithm("diloco", codec="one_bit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pelton.algorithm("diloco", codec="top_k", outer_momentum=0)
        pelton.algorithm("diloco", codec="block_int4")
