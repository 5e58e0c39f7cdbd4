"""Bagua's tuning service: parameters for training jobs, searched for and handed out over HTTP.

Importing it imports neither Flask nor scikit-optimize nor requests (`pip install 'pelton[service]'`).
"""

from pelton.service.autotune_service import AutotuneClient as AutotuneClient
from pelton.service.autotune_service import AutotuneService as AutotuneService

__all__ = ["AutotuneClient", "AutotuneService"]
