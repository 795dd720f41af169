"""The training inference backend: answers all three wire formats over an engine's /generate, keeping exact tokens.

Works on the embedded engine and on SGLang. Knows nothing of records or steps. Built by the composition root, called by
the gateway. A record's training block is what was sampled; text is never tokenized again.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reef.core.records_types import RecordState
from reef.errors import BadConfig, BadRequest, ReefError
from reef.inference.base import Answer, Call, Finish
from reef.inference.dialects import DIALECTS
from reef.inference.dialects.answer import FinishWord, Head, Outcome, Piece, StreamEncoder, TokenLogprob, Usage
from reef.inference.parsers import Parser, check_parsers, output_parser
from reef.inference.sse import dump
from reef.inference.template import ChatTemplate
from reef.inference.textprompt import TextPrompt, text_prompt
from reef.runtime.serving import ServingTable
from reef.train.slime_runtime.reef_adapters.sglang_client import EngineClient, Generation, Part, Sampling

_STREAM_HEADERS = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))
_PLAIN_HEADERS = (("content-type", "application/json"),)


@dataclass(slots=True)
class _SampledAnswer:
    """One answer of the engine. A plain one is ready; a streamed one is sampled while ``slices`` is iterated."""

    status: int
    headers: list[tuple[str, str]]
    release_id: str | None
    generation: Generation
    head: Head
    parser: Parser
    template: ChatTemplate
    encoder: StreamEncoder | None = None
    body: bytes = b""
    spoke: bool = False
    reasoned: bool = False
    ended: bool = False
    fault: ReefError | None = None
    _iterator: AsyncIterator[bytes] | None = None

    def slices(self) -> AsyncIterator[bytes]:
        """The body; a streamed one begins before the first token. Asked again, it goes on where it was."""
        if self._iterator is None:
            self._iterator = self._render()
        return self._iterator

    async def _render(self) -> AsyncIterator[bytes]:
        if self.encoder is None:
            yield self.body
            return
        yield self.encoder.begin()
        try:
            async for part in self.generation.parts():
                sent = self.encoder.add(self.read(part), self.logprobs(part))
                if sent:
                    yield sent
        except ReefError as error:
            self.fault = error
            raise
        closing = self.encoder.add(self.read(None), ()) + self.encoder.end(self.outcome())
        self.ended = True
        yield closing

    def read(self, part: Part | None) -> list[Piece]:
        """The pieces a part adds, or with None those that were held back."""
        pieces = self.parser.close() if part is None else self.parser.feed(part.text)
        for piece in pieces:
            self.spoke = self.spoke or piece.kind == "call" or not piece.text.isspace()
            self.reasoned = self.reasoned or piece.kind == "reasoning"
        return pieces

    def logprobs(self, part: Part) -> list[TokenLogprob]:
        """Log-probs for the client when it asked for them; the token that ends a turn is left out."""
        if self.head.prompt.get("logprobs") is None:
            return []
        shown = []
        for index, (token_id, value) in enumerate(zip(part.output_ids, part.log_probs, strict=False)):
            if token_id in self.template.stop_ids:
                continue
            others = part.alternatives[index] if index < len(part.alternatives) else ()
            shown.append(self._token(token_id, value, tuple(self._token(other, best, ()) for best, other in others)))
        return shown

    def _token(self, token_id: int, logprob: float, top: tuple[TokenLogprob, ...]) -> TokenLogprob:
        raw = self.template.token_bytes(token_id)
        return TokenLogprob(raw.decode("utf-8", "replace"), tuple(raw), logprob, top)

    def outcome(self) -> Outcome:
        """How the generation ended, for the dialect."""
        finish: FinishWord = "length" if self.generation.finish == "length" else "stop"
        generation = self.generation
        thought = self.template.count_reasoning(generation.output_ids) if self.reasoned else 0
        usage = Usage(
            self.head.input_tokens,
            len(generation.output_ids),
            cached_tokens=generation.cached_tokens,
            reasoning_tokens=thought,
        )
        return Outcome(finish, usage, generation.stop_text)

    def finish(self, sent: bytes, reason: str | None = None) -> Finish:
        """The final state with usage and, for a whole answer, the training block."""
        generation = self.generation
        usage = {"input_tokens": self.head.input_tokens, "output_tokens": len(generation.output_ids)}
        usage["total_tokens"] = sum(usage.values())
        usage["cached_tokens"] = generation.cached_tokens
        if not self.ended:
            state = RecordState.ABORTED if self.fault is None and reason is not None else RecordState.INCOMPLETE
            code = self.fault.code if self.fault is not None else reason or "no_end_mark"
            return Finish(state, code, None, usage, self.head.model, None, "the answer is not whole")
        training, problem = training_block(generation)
        oddity = None if self.spoke else "empty_answer"
        return Finish(RecordState.COMPLETE, oddity, generation.finish, usage, self.head.model, training, problem)

    async def aclose(self) -> None:
        """Abort the generation when it has not ended."""
        await self.generation.aclose()


class SGLangChatTrainingInferenceBackend:
    """An InferenceBackend over one engine; ``base_url`` and ``api_key`` may be callables, read anew for each call.

    ``max_answer_tokens`` bounds answers whose request names no limit; without it they may fill the context.
    """

    def __init__(
        self,
        base_url: str | Callable[[], str],
        *,
        api_key: str | Callable[[], str | None] | None,
        tokenizer_path: Path,
        serving: ServingTable,
        model_name: str,
        tool_parser: str = "hermes",
        reasoning_parser: str = "think",
        context_tokens: int | None = None,
        max_answer_tokens: int | None = None,
        connect_timeout_s: float = 5.0,
        idle_timeout_s: float = 600.0,
    ) -> None:
        check_parsers(tool_parser, reasoning_parser)
        self._template = ChatTemplate(tokenizer_path)
        self._client = EngineClient(
            base_url if callable(base_url) else lambda: base_url.rstrip("/"),
            api_key if callable(api_key) else lambda: api_key,
            connect_timeout_s=connect_timeout_s,
            idle_timeout_s=idle_timeout_s,
        )
        self._serving = serving
        self._model_name = model_name
        self._parsers = tool_parser, reasoning_parser
        context = context_tokens or self._template.context_tokens
        if context is None:
            raise BadConfig(
                "the model's settings name no context length", hint="set context_tokens", field="model_path"
            )
        self._context_tokens = context
        self._max_answer_tokens = max_answer_tokens
        self._created_s = int(time.time())

    async def chat(self, call: Call) -> Answer:
        """Answer one call; a plain one is sampled to its end here, a streamed one from here on."""
        dialect = DIALECTS[call.route]
        asked = dialect.parse(call.body)
        prompt = text_prompt(asked)
        text = self._template.render(prompt)
        prompt_ids = self._template.encode(text)
        target = self._serving.target(call.scenario)
        generation = Generation(
            self._client,
            prompt_ids,
            self._sampling(prompt, len(prompt_ids)),
            call.call_id,
            None if target is None else target.adapter,
            call.stream,
            self._template.decode,
            prompt.top_logprobs or 0,
        )
        tool_parser, reasoning_parser = self._parsers
        answer = _SampledAnswer(
            200,
            list(_STREAM_HEADERS if call.stream else _PLAIN_HEADERS),
            None if target is None else target.release_id,
            generation,
            Head(call.call_id, self._model_name, int(time.time()), asked, len(prompt_ids)),
            output_parser(tool_parser, reasoning_parser, tools_offered=bool(prompt.tools), prompt_text=text),
            self._template,
        )
        if call.stream:
            try:
                await generation.start()
            except BaseException:  # the engine may have begun
                await generation.aclose()
                raise
            answer.encoder = dialect.stream(answer.head)
            return answer
        pieces: list[Piece] = []
        logprobs: list[TokenLogprob] = []
        try:
            async for part in generation.parts():
                pieces += answer.read(part)
                logprobs += answer.logprobs(part)
        finally:
            await generation.aclose()
        pieces += answer.read(None)
        answer.body = dump(dialect.plain(answer.head, pieces, answer.outcome(), logprobs))
        answer.ended = True
        return answer

    def serving(self, scenario: str) -> str | None:
        """The release of ``scenario``, None before its first publish."""
        target = self._serving.get(scenario)
        return None if target is None else target.release_id

    async def models(self, headers: tuple[tuple[str, str], ...] = ()) -> Mapping[str, Any]:
        """One model, in a form that both OpenAI's and Anthropic's clients read."""
        created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._created_s))
        model = {
            "id": self._model_name,
            "object": "model",
            "type": "model",
            "display_name": self._model_name,
            "created": self._created_s,
            "created_at": created_at,
            "owned_by": "reef",
            "max_model_len": self._context_tokens,
        }
        ends = {"has_more": False, "first_id": self._model_name, "last_id": self._model_name}
        return {"object": "list", "data": [model], **ends}

    async def count_tokens(self, call: Call) -> Mapping[str, Any]:
        """Tokens of the prompt as it would be sampled from."""
        prompt = text_prompt(DIALECTS[call.route].parse(call.body))
        return {"input_tokens": len(self._template.encode(self._template.render(prompt)))}

    async def check(self) -> None:
        """BadConfig when the engine does not give back ids and log-probs, without which nothing can train."""
        prompt = TextPrompt(({"role": "user", "content": "Hello"},), max_tokens=1)
        prompt_ids = self._template.encode(self._template.render(prompt))
        sampling = self._sampling(prompt, len(prompt_ids))
        generation = Generation(self._client, prompt_ids, sampling, "check", None, False, self._template.decode)
        async for _ in generation.parts():
            pass
        block, problem = training_block(generation)
        if block is None:
            raise BadConfig(
                f"the engine gives no trainable tokens: {problem}", hint="it must honour return_logprob", field="engine"
            )

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.aclose()

    def _sampling(self, prompt: TextPrompt, input_tokens: int) -> Sampling:
        """The request's sampling, its budget cut to what the context leaves."""
        room = self._context_tokens - input_tokens
        if room < 1:
            raise BadRequest(
                f"prompt is too long: {input_tokens} tokens, the maximum context length is {self._context_tokens} "
                "tokens for prompt and answer together",
                code="context_length_exceeded",
                field="messages",
            )
        wanted = prompt.max_tokens or self._max_answer_tokens or room
        return Sampling(
            min(wanted, room),
            prompt.temperature,
            prompt.top_p,
            prompt.top_k,
            prompt.min_p,
            prompt.stop,
            self._template.stop_ids,
            prompt.seed,
        )


def training_block(generation: Generation) -> tuple[Mapping[str, Any] | None, str | None]:
    """The token block of a whole answer, or why there is none."""
    count = len(generation.output_ids)
    if count == 0:
        return None, "no token was sampled"
    if generation.mismatch is not None or len(generation.log_probs) != count:
        return None, generation.mismatch or f"{count} tokens but {len(generation.log_probs)} log-probs"
    if not all(map(math.isfinite, generation.log_probs)):
        return None, "a log-prob is not finite"
    sampled = generation.sampling
    block = {
        "tokens": [*generation.prompt_ids, *generation.output_ids],
        "loss_mask": [1] * count,
        "rollout_log_probs": list(generation.log_probs),
        "temperature": sampled.temperature or 1.0,
        "sampling": sampled.stored(),
        "versions": [dict(span) for span in generation.versions],
        "finish_reason": generation.finish,
    }
    return block, None
