"""BlueFog's graphs, against their formulas written out as matrices."""

import itertools
import math
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pelton import _C
from pelton.bluefog.common import topology_util as tu
from pelton.errors import InvalidArgument
from pelton_run.command_line import main

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 30, 81]
Matrix = NDArray[numpy.float64]


def matrix_of(graph: tu.DiGraph) -> Matrix:
    return numpy.asarray(nx.to_numpy_array(graph, nodelist=range(len(graph))), dtype=numpy.float64)


def circulant(row: list[float]) -> Matrix:
    n = len(row)
    return numpy.array([[row[(j - i) % n] for j in range(n)] for i in range(n)])


def by_distance(size: int, *distances: int) -> Matrix:
    chosen = {0, *(d % size for d in distances)}
    return circulant([1 / len(chosen) if d in chosen else 0.0 for d in range(size)])


def grid(size: int, rows: int) -> Matrix:
    columns = size // rows
    near = numpy.array(
        [
            [abs(i // columns - j // columns) + abs(i % columns - j % columns) <= 1 for j in range(size)]
            for i in range(size)
        ]
    )
    degrees = near.sum(axis=1)
    weights: Matrix = near / numpy.maximum.outer(degrees, degrees)
    numpy.fill_diagonal(weights, 0)
    numpy.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return weights


def star(size: int, center: int) -> Matrix:
    weights = numpy.diag([1 / size if i == center else 1 - 1 / size for i in range(size)])
    weights[center, :] = weights[:, center] = 1 / size
    return weights


@pytest.mark.parametrize("size", SIZES)
def test_weights_are_those_of_the_formulas(size: int) -> None:
    powers = {base: [base**k for k in range(20) if base**k < size] for base in (2, 3, 4)}
    folded = [d for d in range(1, size) if (d if d <= size // 2 else size - d) in powers[4]]
    rows = max(d for d in range(1, math.isqrt(size) + 1) if size % d == 0)
    expected = {
        "exponential two": (tu.ExponentialTwoGraph(size), by_distance(size, *powers[2])),
        "power two": (tu.PowerTwoRingGraph(size), by_distance(size, *powers[2])),
        "exponential": (tu.ExponentialGraph(size, 3), by_distance(size, *powers[3])),
        "symmetric": (tu.SymmetricExponentialGraph(size), by_distance(size, *folded)),
        "ring": (tu.RingGraph(size), by_distance(size, 1, -1)),
        "ring left": (tu.RingGraph(size, connect_style=1), by_distance(size, -1)),
        "ring right": (tu.RingGraph(size, connect_style=2), by_distance(size, 1)),
        "star": (tu.StarGraph(size, center_rank=size - 1), star(size, size - 1)),
        "full": (tu.FullyConnectedGraph(size), numpy.full((size, size), 1 / size)),
        "grid": (tu.MeshGrid2DGraph(size), grid(size, rows)),
        "column": (tu.MeshGrid2DGraph(size, shape=(size, 1)), grid(size, size)),
    }
    for name, (graph, wanted) in expected.items():
        numpy.testing.assert_allclose(matrix_of(graph), wanted, rtol=0, atol=1e-15, err_msg=name)


def test_powers_that_a_logarithm_misses_are_there() -> None:
    assert 243 in tu.ExponentialGraph(300, base=3)[0]
    assert 1000 in tu.ExponentialGraph(1200, base=10)[0]
    assert tu.isPowerOf(243, 3) and tu.isPowerOf(1000, 10) and tu.isPowerOf(1, 7)
    assert not tu.isPowerOf(12, 2) and not tu.isPowerOf(6, 4)


def test_weights_to_send_and_to_receive() -> None:
    graph = tu.StarGraph(4, center_rank=2)
    assert tu.GetRecvWeights(graph, 0) == (0.75, {2: 0.25})
    assert tu.GetSendWeights(graph, 2) == (0.25, {0: 0.25, 1: 0.25, 3: 0.25})
    right = tu.RingGraph(3, connect_style=2)
    assert tu.GetRecvWeights(right, 0) == (0.5, {2: 0.5})
    assert tu.GetSendWeights(right, 0) == (0.5, {1: 0.5})
    assert tu.GetRecvWeights(nx.DiGraph([(0, 1)]), 1) == (0.0, {0: 1.0})


def test_equivalent_and_regular() -> None:
    by_hand = nx.DiGraph(tu.RingGraph(4))
    assert tu.IsTopologyEquivalent(tu.RingGraph(4), by_hand)
    by_hand[0][1]["weight"] = 0.25
    assert not tu.IsTopologyEquivalent(tu.RingGraph(4), by_hand)
    assert not tu.IsTopologyEquivalent(tu.RingGraph(4), None)
    assert not tu.IsTopologyEquivalent(tu.RingGraph(4), tu.RingGraph(5))
    assert tu.IsRegularGraph(tu.RingGraph(5)) and tu.IsRegularGraph(tu.ExponentialTwoGraph(6))
    assert not tu.IsRegularGraph(tu.StarGraph(5)) and not tu.IsRegularGraph(tu.MeshGrid2DGraph(6))


def turns(make: object, ranks: range, steps: int) -> list[list[tuple[list[int], list[int]]]]:
    """By step, then rank."""
    iterators = [make(rank) for rank in ranks]  # type: ignore[operator]
    return [[next(iterator) for iterator in iterators] for _ in range(steps)]


def assert_both_ends_agree(step: list[tuple[list[int], list[int]]]) -> None:
    sent = {(i, j) for i, (targets, _) in enumerate(step) for j in targets}
    received = {(i, j) for j, (_, sources) in enumerate(step) for i in sources}
    assert sent == received
    assert all(sources == sorted(sources) for _, sources in step)


@given(st.integers(1, 20), st.integers(0, 3))
def test_one_peer_takes_neighbours_by_distance(size: int, kind: int) -> None:
    graph = [tu.ExponentialTwoGraph, tu.RingGraph, tu.MeshGrid2DGraph, tu.StarGraph][kind](size)
    for number, step in enumerate(turns(lambda r: tu.GetDynamicOnePeerSendRecvRanks(graph, r), range(size), 7)):
        assert_both_ends_agree(step)
        for rank, (targets, _) in enumerate(step):
            around = sorted((j for j in graph.successors(rank) if j != rank), key=lambda j: (j - rank) % size)
            assert targets == ([around[number % len(around)]] if around else [])


@given(st.integers(2, 9), st.integers(1, 5))
def test_machines_send_by_powers_of_two(machines: int, each: int) -> None:
    size = machines * each

    def make(rank: int) -> tu.SendAndRecv:
        return tu.GetExp2DynamicSendRecvMachineRanks(size, each, rank, rank % each)

    period = int(math.log2(machines - 1)) + 1
    for number, step in enumerate(turns(make, range(size), 8)):
        distance = 2 ** (number % period)
        for rank, (targets, sources) in enumerate(step):
            assert targets == [(rank // each + distance) % machines]
            assert sources == [(rank // each - distance) % machines]


@given(st.integers(2, 6), st.integers(3, 7))
def test_inner_rings_leave_out_who_is_outside(machines: int, each: int) -> None:
    size = machines * each
    make = tu.GetInnerOuterRingDynamicSendRecvRanks
    for number, step in enumerate(turns(lambda rank: make(size, each, rank), range(size), 2 * each)):
        assert_both_ends_agree(step)
        outside = number % each
        for rank, ([target], _) in enumerate(step):
            machine, place = divmod(rank, each)
            if place == outside:
                assert target == (machine + 1) % machines * each + place
                continue
            after = (place + 1) % each
            assert target == machine * each + (after if after != outside else (after + 1) % each)


@given(st.integers(2, 6), st.integers(3, 9))
def test_inner_powers_go_one_further_past_who_is_outside(machines: int, each: int) -> None:
    size = machines * each
    make = tu.GetInnerOuterExpo2DynamicSendRecvRanks
    outer, inner = int(math.log2(machines - 1)) + 1, int(math.log2(each - 2)) + 1
    for number, step in enumerate(turns(lambda rank: make(size, each, rank), range(size), 2 * each)):
        assert_both_ends_agree(step)
        outside = number % each
        for rank, ([target], _) in enumerate(step):
            machine, place = divmod(rank, each)
            if place == outside:
                assert target == (machine + 2 ** (number % outer)) % machines * each + place
                continue
            distance = 2 ** (number % inner)
            distance += distance >= (outside - place) % each
            assert target == machine * each + (place + distance) % each


def test_the_iterators_have_no_end() -> None:
    iterator = tu.GetDynamicOnePeerSendRecvRanks(tu.RingGraph(3), 0)
    assert [targets for targets, _ in itertools.islice(iterator, 4)] == [[1], [2], [1], [2]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tu.RingGraph(4, connect_style=3), "connect_style=3"),
        (lambda: tu.RingGraph(0), "size is 0"),
        (lambda: tu.StarGraph(4, center_rank=4), "not a rank from 0 to 3"),
        (lambda: tu.MeshGrid2DGraph(6, shape=(2, 2)), "2x2"),
        (lambda: tu.ExponentialGraph(6, base=1), "at least 2"),
        (lambda: tu.isPowerOf(0, 2), "x=0"),
        (lambda: tu.GetInnerOuterRingDynamicSendRecvRanks(4, 2, 0), "not at least 3"),
        (lambda: tu.GetExp2DynamicSendRecvMachineRanks(6, 4, 0, 0), "machines must be of one size"),
        (lambda: tu.GetExp2DynamicSendRecvMachineRanks(6, 3, 1, 2), "local_rank=2"),
        (lambda: tu.GetDynamicOnePeerSendRecvRanks(tu.RingGraph(3), 3), "rank 3"),
        (lambda: tu.GetDynamicOnePeerSendRecvRanks(nx.DiGraph([(1, 2)]), 0), "its nodes"),
    ],
)
def test_what_does_not_fit_is_named(call: object, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        call()  # type: ignore[operator]


def test_the_command_tells_how_fast_graphs_mix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["topology", "-n", "9"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[1:]}
    assert set(rows) == {name for name, _, _ in _C.graphs()}
    assert rows["one_peer_exponential"][1:4] == ["9", "4", "1"] and rows["one_peer_exponential"][-1] == "approached"
    assert rows["fully_connected"][-2:] == ["1.0000", "exact"]
    assert float(rows["ring"][4]) == pytest.approx(1 - (1 + 2 * math.cos(2 * math.pi / 9)) / 3, abs=1e-4)
    picture = tmp_path / "ring.svg"
    assert main(["topology", "ring", "sides=left", "-n", "5", "--svg", str(picture)]) == 0
    assert "sides = both" in capsys.readouterr().out
    assert len(ElementTree.parse(picture).findall(".//{*}line")) == 5
    assert main(["topology", "ringg"]) == 1
    assert "'ringg' is not registered" in capsys.readouterr().err
