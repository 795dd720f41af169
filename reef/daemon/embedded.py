"""The backend in front of the embedded engine. Imported only when a model is served."""

from __future__ import annotations

from collections.abc import Callable

from reef.config import Service
from reef.dotted import imported
from reef.errors import BadConfig
from reef.inference.base import InferenceBackend
from reef.runtime.serving import ServingTable
from reef.train.slime_runtime.reef_adapters.sglang_chat import SGLangChatTrainingInferenceBackend
from reef.train.torch_runtime.runtime import TorchRuntime


def embedded_backend(service: Service, engine: TorchRuntime, serving: ServingTable) -> InferenceBackend:
    """The one training inference backend, pointed at the engine child; address and key are read anew for each call."""
    return _factory(service.inference_backend_factory)(
        lambda: engine.engine_url,
        api_key=lambda: engine.engine_key,
        tokenizer_path=engine.model_folder,
        serving=serving,
        model_name=engine.model_folder.name,
        tool_parser=service.tool_parser,
        reasoning_parser=service.reasoning_parser,
        max_answer_tokens=service.max_tokens,
        connect_timeout_s=service.connect_timeout_s,
        idle_timeout_s=service.idle_timeout_s,
    )


def _factory(path: str | None) -> Callable[..., InferenceBackend]:
    """The class named by ``reef.inference_backend_factory``, ours by default; raises BadConfig."""
    if path is None:
        return SGLangChatTrainingInferenceBackend
    found = imported(path, "reef.inference_backend_factory", "inference_backend_factory")
    if not isinstance(found, type) or not hasattr(found, "chat"):
        raise BadConfig(
            f"reef.inference_backend_factory {path!r} is no inference backend",
            hint=f"e.g. {SGLangChatTrainingInferenceBackend.__module__}.{SGLangChatTrainingInferenceBackend.__name__}",
            field="inference_backend_factory",
        )
    return found
