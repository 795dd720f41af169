"""The backend in front of the embedded engine. Imported only when a model is served."""

from __future__ import annotations

from reef.config import Service
from reef.inference.base import InferenceBackend
from reef.runtime.serving import ServingTable


def embedded_backend(service: Service, engine: object, serving: ServingTable) -> InferenceBackend:
    """The one training inference backend, pointed at the engine child."""
    raise NotImplementedError
