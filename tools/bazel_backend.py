"""pip's way to Bazel: an in-tree build backend (PEP 517, 660) without dependencies.

`pip install .` builds //torch_bindings:_C with the Python that pip runs under, and where CUDA's compiler is the GPU
kernels that it looks up beside itself, and packs them with the Python files;
`pip install -e .` leaves those where they are, so that editing them needs no new install. A build belongs to the torch
that this Python has: the metadata pin its minor version, and the package refuses another one when it is imported.
"""

from __future__ import annotations

import base64
import hashlib
import os
import runpy
import shutil
import stat
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "torch_bindings"
PACKAGES = ("pelton", "pelton_autoload", "pelton_run")
# `import torch` itself makes the backend "pelton" known where the package is installed.
TORCH_BACKENDS = ["[torch.backends]", "pelton = pelton_autoload:register"]
# `import torch` itself imports this one: it is copied also where the checkout is only pointed to, so that a checkout
# that was moved away cannot break `import torch`.
AUTOLOAD = "pelton_autoload"
EXTENSION = "//torch_bindings:_C"
LIBRARIES = "//torch_bindings:libraries"
DAEMON = "//tools/daemon:pelton-daemon"
# What the extension was built for; written by the build, read by pelton/__init__.py before it loads the extension.
BUILD_RECORD = "_build.py"
Settings = Mapping[str, object] | None


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Builds the extension and packs everything; returns the file's name."""
    torch = torch_version()
    files = python_files()
    built = _build()
    for name, path in built.items():
        files[f"pelton/{name}"] = path.read_bytes()
    files[f"pelton/{BUILD_RECORD}"] = _build_record(torch, built)
    return _write_wheel(Path(wheel_directory), files, torch)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds the extension into the checkout and packs only a pointer to it; returns the file's name."""
    torch = torch_version()
    built = _build()
    for name, path in built.items():
        target = SOURCES / "pelton" / name
        fresh = target.with_suffix(".new")
        shutil.copyfile(path, fresh)
        fresh.chmod(0o755)
        fresh.replace(target)  # processes that have the old one mapped keep it
    (SOURCES / "pelton" / BUILD_RECORD).write_bytes(_build_record(torch, built))
    files = {path: content for path, content in python_files().items() if path.startswith(f"{AUTOLOAD}/")}
    files["pelton_checkout.pth"] = f"{SOURCES}\n".encode()
    return _write_wheel(Path(wheel_directory), files, torch)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Writes the metadata without building anything; returns the folder's name."""
    folder = Path(metadata_directory) / _dist_info()
    for name, content in _metadata(torch_version()).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder.name


def python_files() -> dict[str, bytes]:
    """What a wheel carries beside the extension, by path inside of it; the alias packages of pelton.compat too."""
    files: dict[str, bytes] = {}
    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*")):
            if path.suffix in (".py", ".pyi") or path.name == "py.typed":
                files[str(path.relative_to(SOURCES))] = path.read_bytes()
    return files


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Nothing beyond the standard library, where that reads TOML."""
    return [] if sys.version_info >= (3, 11) else ["tomli"]


get_requires_for_build_editable = get_requires_for_build_wheel


def torch_version() -> str:
    """The version of this Python's torch, which the extension is built for.

    Raises:
      SystemExit: it has none; the text says what to install. -I ignores the folder that pip's build isolation puts in
        front, as the build itself does.
    """
    probe = [sys.executable, "-I", "-c", "import torch; print(torch.__version__)"]
    outcome = subprocess.run(probe, capture_output=True, text=True, check=False)
    if outcome.returncode == 0:
        return outcome.stdout.strip()
    wanted = " or ".join(_strings(_project()["dependencies"]))
    raise SystemExit(
        f"pelton is built for the torch of its environment, and {sys.executable} has none that imports "
        f"({outcome.stderr.strip().splitlines()[-1:]}). First: {sys.executable} -m pip install '{wanted}'"
    )


def _build_record(torch: str, built: Mapping[str, Path]) -> bytes:
    kernels = any("kernels" in name for name in built)
    text = f'''"""What this build of the extension is for; written by the build."""

TORCH = "{torch}"
HAS_GPU_KERNELS = {kernels}
'''
    return text.encode()


def _build() -> dict[str, Path]:
    """Builds the extension module for this Python, and what goes beside it; returns the files by name there."""
    bazel = os.environ.get("BAZEL", "bazel")
    if shutil.which(bazel) is None:
        raise SystemExit(f"{bazel} is not installed; on Debian 12: apt-get install bazel-bootstrap (see README.md)")
    flags = ["-c", "opt", f"--repo_env=PYTHON_BIN_PATH={sys.executable}"]
    subprocess.run([bazel, "build", *flags, EXTENSION, LIBRARIES, DAEMON], cwd=ROOT, check=True)
    root = Path(_output([bazel, "info", *flags, "execution_root"]).strip())
    paths = [path for target in (LIBRARIES, DAEMON, EXTENSION) for path in _outputs_of(target, bazel, flags)]
    files = {path.name: root / path for path in paths}
    return {_extension_name(): files.pop("_C.so"), **files}


def _outputs_of(target: str, bazel: str, flags: list[str]) -> list[Path]:
    """The files of a target, below Bazel's execution root."""
    expression = "--starlark:expr=' '.join([file.path for file in target.files.to_list()])"
    return [Path(path) for path in _output([bazel, "cquery", *flags, target, "--output=starlark", expression]).split()]


def _output(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _extension_name() -> str:
    return f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"


def _project() -> dict[str, object]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        project: dict[str, object] = tomllib.load(file)["project"]
    return {**project, "version": runpy.run_path(str(SOURCES / "pelton" / "_version.py"))["__version__"]}


def _dist_info() -> str:
    project = _project()
    return f"{project['name']}-{project['version']}.dist-info"


def _tag() -> str:
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{version}-{version}-{platform}"


def _extras(project: dict[str, object]) -> list[str]:
    """What `pip install 'pelton[name]'` adds."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    lines = []
    for name, requirements in extras.items():
        lines.append(f"Provides-Extra: {name}")
        lines += [f'Requires-Dist: {requirement}; extra == "{name}"' for requirement in requirements]
    return lines


def _metadata(torch: str) -> dict[str, bytes]:
    project = _project()
    minor = ".".join(torch.split(".")[:2])
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE",
        f"Keywords: {','.join(_strings(project['keywords']))}",
        *(f"Classifier: {classifier}" for classifier in _strings(project["classifiers"])),
        f"Requires-Python: {project['requires-python']}",
        f"Requires-Dist: torch=={minor}.*",
        *_extras(project),
        "Description-Content-Type: text/markdown",
        "",
        (ROOT / "README.md").read_text(),
    ]
    wheel = ["Wheel-Version: 1.0", "Generator: bazel_backend", "Root-Is-Purelib: false", f"Tag: {_tag()}"]
    scripts = project["scripts"]
    assert isinstance(scripts, dict)
    entry_points = ["[console_scripts]", *(f"{name} = {target}" for name, target in scripts.items())]
    entry_points += TORCH_BACKENDS
    contents = {"METADATA": lines, "WHEEL": wheel, "entry_points.txt": entry_points}
    files = {name: ("\n".join(content) + "\n").encode() for name, content in contents.items()}
    return {**files, "licenses/LICENSE": (ROOT / "LICENSE").read_bytes()}


def _strings(value: object) -> Iterable[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]


def _write_wheel(directory: Path, files: dict[str, bytes], torch: str) -> str:
    dist_info = _dist_info()
    contents = dict(files)
    contents.update({f"{dist_info}/{name}": content for name, content in _metadata(torch).items()})
    name = f"{dist_info.removesuffix('.dist-info')}-{_tag()}.whl"
    record = "".join(_record_line(path, content) for path, content in contents.items())
    contents[f"{dist_info}/RECORD"] = f"{record}{dist_info}/RECORD,,\n".encode()
    with zipfile.ZipFile(directory / name, "w") as wheel:
        for path, content in contents.items():
            entry = zipfile.ZipInfo(path)  # a fixed time, so that equal inputs give equal wheels
            # pip makes only regular files programs, and goes by these bits alone.
            mode = 0o755 if path.endswith((".so", "/pelton-daemon")) else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return name


def _record_line(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"
