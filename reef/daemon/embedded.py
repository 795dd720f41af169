"""The backend in front of the embedded engine. Imported only when a model is served."""

from __future__ import annotations

from reef.config import Service
from reef.inference.base import InferenceBackend
from reef.runtime.serving import ServingTable
from reef.train.slime_runtime.reef_adapters.sglang_chat import SGLangChatTrainingInferenceBackend
from reef.train.torch_runtime.runtime import TorchRuntime


def embedded_backend(service: Service, engine: TorchRuntime, serving: ServingTable) -> InferenceBackend:
    """The one training inference backend, pointed at the engine child; address and key are read anew for each call."""
    return SGLangChatTrainingInferenceBackend(
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
