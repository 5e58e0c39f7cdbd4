"""Pelton under the name of Bagua's native module: what scripts reach into it for; see pelton.compat."""

from pelton.compat.aliases import install

install("bagua_core")

from pelton.torch_api import _raw_communicator  # noqa: E402

_raw_communicator.install()

from pelton._C import Communicator as BaguaSingleCommunicatorPy  # noqa: E402, F401
from pelton._training._model_backend import ModelBackend as BaguaCommBackendPy  # noqa: E402, F401
from pelton._training.bucket import BaguaBucket as BaguaBucketPy  # noqa: E402, F401
from pelton._training.tensor import BackendTensor as BaguaTensorPy  # noqa: E402, F401


def show_version() -> None:
    """Prints which library stands behind the name."""
    from pelton import __version__

    print(f"bagua_core: Pelton {__version__}")


def install_deps() -> None:
    """Bagua downloads NCCL here; Pelton takes that of PyTorch, and nothing is to be done."""
