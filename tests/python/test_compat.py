"""Scripts written for Bagua, run unchanged by `python -m pelton.compat`."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from importlib.abc import ExecutionLoader
from pathlib import Path

import pytest
from pelton.compat.__main__ import main
from pelton.compat.aliases import PACKAGES, AliasFinder, install, refusal
from spawn import HERE, environment, launcher, run

COMMAND = [sys.executable, "-m", "pelton.compat"]

SCRIPT = """
import sys
import bagua.torch_api as bagua
import bagua.torch_api.algorithms.gradient_allreduce as by_path
from bagua.torch_api.algorithms import Algorithm, AlgorithmImpl
from bagua.torch_api.bucket import BaguaBucket
from bagua.torch_api.communication import BaguaProcessGroup
from bagua.torch_api.data_parallel.bagua_distributed import BaguaDistributedDataParallel
from bagua.torch_api.tensor import BaguaTensor
from bagua.torch_api.algorithms import gradient_allreduce
from bagua.torch_api.communication import ReduceOp
import torch
import torch.multiprocessing
import pelton, pelton.torch_api, pelton.torch_api.env

assert bagua is pelton.torch_api and sys.modules["bagua.torch_api"] is pelton.torch_api
assert by_path is gradient_allreduce is pelton.torch_api.algorithms.gradient_allreduce
import bagua as top
import bagua.torch_api.env as env
import bagua_core as B
from bagua.version import __version__ as version
from bagua.torch_api.utils import StatisticalAverage, flatten
assert version == top.__version__ == "0.9.2+pelton." + pelton.__version__, version
assert top.bagua_core is B and B.install_deps() is None
B.show_version()
assert top.torch_api is pelton.torch_api
assert env is pelton.torch_api.env is sys.modules["bagua.torch_api.env"]
assert pelton.torch_api.__spec__.name == pelton.torch_api.__name__ == "pelton.torch_api"
assert pelton.torch_api.env.__spec__.name == "pelton.torch_api.env"
try:
    import bagua.service as service
except ModuleNotFoundError as error:
    assert "no counterpart of bagua.service" in str(error), error
import bluefog.torch as bf
from bluefog.common import topology_util
import pelton.bluefog.common.topology_util, pelton.bluefog.torch
assert bf is pelton.bluefog.torch and topology_util is pelton.bluefog.common.topology_util


class Summing(AlgorithmImpl):
    def __init__(self, process_group: BaguaProcessGroup, hierarchical: bool):
        super().__init__(process_group)
        self.hierarchical = hierarchical

    def init_tensors(self, bagua_ddp: BaguaDistributedDataParallel) -> list[BaguaTensor]:
        tensors = []
        for name, parameter in bagua_ddp.bagua_build_params().__reversed__():
            tensors.append(parameter.bagua_ensure_grad().ensure_bagua_tensor(
                name,
                bagua_ddp.bagua_module_name,
                getter_closure=lambda parameter: parameter.grad,
                setter_closure=lambda parameter, t: setattr(parameter, "grad", t),
            ))
        return tensors

    def tensors_to_buckets(self, tensors: list[list[BaguaTensor]], do_flatten: bool) -> list[BaguaBucket]:
        size = self.process_group.get_global_communicator().nranks()
        return [BaguaBucket(group, flatten=do_flatten, name=str(i), alignment=size) for i, group in enumerate(tensors)]

    def init_backward_hook(self, bagua_ddp: BaguaDistributedDataParallel):
        def hook(parameter_name, parameter):
            assert parameter.bagua_backend_tensor().data_ptr() == parameter.grad.data_ptr()
            parameter.bagua_mark_communication_ready()
        return hook

    def init_operations(self, bagua_ddp: BaguaDistributedDataParallel, bucket: BaguaBucket):
        bucket.clear_ops()
        bucket.append_centralized_synchronous_op(
            hierarchical=self.hierarchical, average=False, group=self.process_group)


class SummingAlgorithm(Algorithm):
    def reify(self, process_group: BaguaProcessGroup) -> Summing:
        return Summing(process_group, hierarchical=False)


def child(index):
    import bagua.torch_api.env as env
    assert env.__name__ == "pelton.torch_api.env"
    print("child", index, env.get_rank())


def main():
    bagua.init_process_group()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = model.with_bagua([optimizer], gradient_allreduce.GradientAllReduceAlgorithm())
    model(torch.ones(3, 4) * bagua.get_rank()).sum().backward()
    custom = torch.nn.Linear(4, 2).with_bagua([], SummingAlgorithm())
    custom(torch.ones(3, 4)).sum().backward()
    assert custom.weight.grad.eq(3 * bagua.get_world_size()).all(), custom.weight.grad
    total = torch.ones(1)
    bagua.allreduce(total, total, op=ReduceOp.SUM)
    print("total", int(total), sys.argv[1:], __name__)
    if "spawn" in sys.argv:
        torch.multiprocessing.spawn(child, nprocs=1)


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_and_its_children(script: Path) -> None:
    outcome = run([*COMMAND, str(script), "spawn", "--epochs", "3"], 120)
    assert outcome.code == 0, outcome.errors
    assert "total 1 ['spawn', '--epochs', '3'] __main__" in outcome.output
    assert "child 0 0" in outcome.output
    assert "bagua_core: Pelton " in outcome.output


def test_a_job_with_the_alias_packages_on_its_path(script: Path) -> None:
    paths = os.pathsep.join([str(PACKAGES), environment()["PYTHONPATH"]])
    outcome = run(launcher(2, script), 120, {"PYTHONPATH": paths})
    assert outcome.code == 0, outcome.errors
    assert outcome.output.count("total 2 [] __main__") == 2


def test_the_path_is_printed_and_shipped() -> None:
    outcome = run([*COMMAND, "--path"], 60)
    folder = Path(outcome.output.strip())
    assert sorted(entry.name for entry in folder.iterdir() if entry.name != "__pycache__") == [
        "bagua",
        "bagua_core",
        "bluefog",
    ]
    location = HERE.parents[1] / "tools" / "bazel_backend.py"
    spec = importlib.util.spec_from_file_location("bazel_backend", location)
    assert spec is not None
    assert spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    assert {f"pelton/compat/packages/{name}/__init__.py" for name in ("bagua", "bagua_core", "bluefog")} <= set(
        backend.python_files()
    )


def test_a_checkout_of_bagua_in_the_current_folder_does_no_harm(script: Path) -> None:
    checkout = script.parent / "checkout"
    (checkout / "bagua").mkdir(parents=True)
    (checkout / "bagua" / "__init__.py").write_text("raise AssertionError")
    command = f"cd {checkout} && exec {' '.join(COMMAND)} {script}"
    outcome = run(["sh", "-c", command], 120)
    assert outcome.code == 0, outcome.errors


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["bagua.distributed.launch", "--help"], "usage: pelton.distributed.launch"),  # a module
        (["bagua.compat", "--path"], str(PACKAGES)),  # a package, by its __main__
    ],
)
def test_an_alias_runs_as_a_program(words: list[str], text: str) -> None:
    paths = os.pathsep.join([str(PACKAGES), environment()["PYTHONPATH"]])
    outcome = run([sys.executable, "-m", *words], 120, {"PYTHONPATH": paths})
    assert text in outcome.output + outcome.errors  # --path says then that the folder is on the path already
    assert "No code object" not in outcome.errors


def test_baguas_launcher_runs_a_job_of_a_script_for_bagua(script: Path) -> None:
    paths = os.pathsep.join([str(PACKAGES), environment()["PYTHONPATH"]])
    words = ["bagua.distributed.launch", "--nproc_per_node=2", str(script), "--epochs", "3"]
    outcome = run([sys.executable, "-m", *words], 120, {"PYTHONPATH": paths})
    assert outcome.code == 0, outcome.errors
    for rank in (0, 1):
        assert f"[rank {rank}] total 2 ['--epochs', '3'] __main__" in outcome.output.splitlines()


@pytest.mark.parametrize(("name", "is_package"), [("run", False), ("torch_api", True), ("torch_api.env", False)])
def test_an_alias_is_what_its_counterpart_is(name: str, is_package: bool) -> None:
    spec = AliasFinder().find_spec(f"bagua.{name}", None)
    assert spec is not None
    loader = spec.loader
    assert isinstance(loader, ExecutionLoader)
    counterpart = importlib.import_module(f"pelton.{name}")
    assert loader.is_package(spec.name) is is_package
    assert (spec.submodule_search_locations is not None) is is_package
    assert spec.origin == loader.get_filename(spec.name) == counterpart.__file__
    assert loader.get_source(spec.name) == inspect.getsource(counterpart)
    code = loader.get_code(spec.name)
    assert code is not None
    assert code.co_filename == counterpart.__file__


def test_an_alias_of_an_extension_module_has_no_code() -> None:
    spec = AliasFinder().find_spec("bagua._C", None)
    assert spec is not None
    assert isinstance(spec.loader, ExecutionLoader)
    assert spec.loader.get_code("bagua._C") is None


@pytest.mark.parametrize("words", [["--path"], ["script.py"]])
def test_a_real_bagua_is_not_hidden(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bagua").mkdir()
    (tmp_path / "bagua" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(tmp_path)])
    assert main(words) == 1
    assert f"the real bagua is installed ({tmp_path}/bagua/__init__.py)" in capsys.readouterr().err
    with pytest.raises(ImportError, match="the real bagua is installed"):
        install("bagua")


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bagua" / "bagua").mkdir(parents=True)
    (tmp_path / "bagua" / "bagua" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert refusal("bagua") is None


@pytest.mark.parametrize(
    ("words", "text"), [([], "usage"), (["--fast"], "unknown option --fast"), (["none.py"], "there is no none.py")]
)
def test_command_lines_that_are_wrong(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("PYTHONPATH", "")  # what it sets is undone
    assert main(words) == 2
    assert text in capsys.readouterr().err
