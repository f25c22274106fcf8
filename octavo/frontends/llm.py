"""The offline library: lists of prompts in, lists of results out, with vLLM's names. It drives the service's streams on a private event loop."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.checkpoint.catalog import DEFAULT_MODEL
from octavo.checkpoint.pull import resolve_model
from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidParameter, OctavoError, RequestError
from octavo.frontends.options import engine_config
from octavo.frontends.outputs import OutputFold
from octavo.service.admission import Limits
from octavo.service.launch import local_service
from octavo.service.service import ServiceOptions
from octavo.service.types import GenerateRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from octavo.frontends.outputs import RequestOutput
    from octavo.service.generation import Generation
    from octavo.service.service import Service, Tokenizer

    Prompt = str | dict[str, Any] | list[int]
    Progress = bool | Callable[..., Any]

logger = logging.getLogger(__name__)
T = TypeVar("T")

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "cache_salt")

_open: weakref.WeakSet[LLM] = weakref.WeakSet()


@atexit.register
def _close_open() -> None:
    """End the engines of programs that did not: once the interpreter finalizes, the threads that would do it are frozen."""
    for llm in list(_open):
        llm.close()


class LLM:
    """A model in this process. Close it, or use it as a context manager, to free its memory.

    ``model``: a catalog name, a folder or a .gguf file. ``options``: those of :class:`octavo.EngineConfig` and the common ones of vLLM's LLM;
    sizes may be text ("2GiB"). Requests without a seed draw from the sequence that ``seed`` (default 0) starts, so a program repeats itself.
    Raises ConfigError, CheckpointError, OutOfMemory.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        config = engine_config({"model": model, **options})
        path = resolve_model(config.model)
        name = config.served_model_name or config.model
        self._counter = itertools.count()
        limits = Limits(max_queued=None, max_pending=None)
        self._service: Service = local_service(replace(config, model=str(path)), ServiceOptions(model_name=name, limits=limits, seed=config.seed))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="octavo-llm", daemon=True)
        self._thread.start()
        _open.add(self)
        try:
            self._run(self._service.start())
        except BaseException:
            self.close()
            raise

    # --- generation ---

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        priority: list[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, batched together; results come in the order of the prompts.

        A prompt is text, a list of token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``. One SamplingParams serves all, a list
        gives one each. ``use_tqdm``: a progress bar, or a function that makes one. An invalid prompt raises before anything runs, a grammar
        that cannot be compiled (GrammarError) when it is found, which ends the others too.
        """
        sources = [_prompt(p, i) for i, p in enumerate(_prompt_list(prompts))]
        return self._generate(sources, sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: list[dict[str, Any]] | list[list[dict[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        priority: list[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] = "auto",
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them. The rest is as in :meth:`generate`. Raises TemplateError for what the template refuses.

        ``tools`` are functions in OpenAI's form; calls come in ``outputs[i].tool_calls``. ``tool_choice``: "auto", "none", "required", or
        ``{"type": "function", "function": {"name": ...}}``.
        """
        single = bool(messages) and isinstance(messages[0], dict)
        conversations: list[Any] = [messages] if single or not messages else list(messages)
        shared = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            "tool_choice": tool_choice,
            "chat_template_kwargs": chat_template_kwargs or {},
        }
        sources = [{"messages": c, **shared} for c in conversations]
        return self._generate(sources, sampling_params, use_tqdm, priority)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: ``encode``, ``decode``, ``vocab_size`` ..."""
        return self._service.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What holds when none are given: the library's defaults with the model's generation_config over them."""
        return SamplingParams(**self._service.default_params)

    def get_metrics(self) -> dict[str, float]:
        """Gauges and counters of the engine and its requests, such as ``num_preemptions`` and ``prefix_cache_hits``."""

        async def read() -> dict[str, float]:
            await self._service.stats()
            return self._service.metrics.values()

        return self._run(read())

    # --- life ---

    def close(self) -> None:
        """Stop the engine and free the model. May be called twice."""
        loop, self._loop = self._loop, None
        _open.discard(self)
        if loop is None or not self._thread.is_alive():  # a forked child has the object without its thread
            return
        asyncio.run_coroutine_threadsafe(self._service.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_loop", None) is not None and threading.current_thread() is not self._thread:
            self.close()

    # --- inside ---

    def _generate(
        self, sources: list[dict[str, Any]], params: SamplingParams | Sequence[SamplingParams] | None, use_tqdm: Progress, priority: list[int] | None
    ) -> list[RequestOutput]:
        each = _one_each("sampling_params", params, len(sources), self.get_default_sampling_params())
        priorities = _one_each("priority", priority, len(sources), 0)
        requests = [
            GenerateRequest(request_id=str(next(self._counter)), params=p, priority=rank, **source)
            for source, p, rank in zip(sources, each, priorities, strict=True)
        ]
        return self._run(self._collect(requests, use_tqdm))

    async def _collect(self, requests: list[GenerateRequest], use_tqdm: Progress) -> list[RequestOutput]:
        if not requests:
            return []
        generations = await self._service.generate_all(requests)
        bar = _progress_bar(use_tqdm, len(generations))
        try:
            return await asyncio.gather(*(_read(g, bar) for g in generations))
        finally:
            if bar is not None:
                bar.close()
            for generation in generations:
                await generation.aclose()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the private loop and wait; an interrupt (Ctrl-C) cancels it, which aborts its requests."""
        if self._loop is None:
            work.close()
            raise OctavoError("this LLM is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _read(generation: Generation, bar: Any) -> RequestOutput:
    fold = OutputFold(generation)
    async for delta in generation:
        fold.add(delta)
        if isinstance(generation.failure, RequestError):
            raise generation.failure
        if delta.finish_reason == "error":
            logger.error("request %s failed: %s", generation.request_id, delta.error)
    if bar is not None:
        bar.update(1)
    return fold.result()


def _progress_bar(use_tqdm: Progress, total: int) -> Any:
    if not use_tqdm:
        return None
    if callable(use_tqdm):
        return use_tqdm(total=total, desc="Processed prompts")
    from tqdm.auto import tqdm

    return tqdm(total=total, desc="Processed prompts", unit="prompt", dynamic_ncols=True)


def _prompt_list(prompts: Any) -> list[Any]:
    """One prompt or many, as a list."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    if not isinstance(prompts, (list, tuple)):
        raise InvalidParameter(f"prompts must be text, a dict, token ids, or a list of these, got {type(prompts).__name__}", param="prompts")
    if prompts and all(isinstance(p, int) and not isinstance(p, bool) for p in prompts):
        return [list(prompts)]
    return list(prompts)


def _prompt(prompt: Any, position: int) -> dict[str, Any]:
    """One prompt as fields of GenerateRequest."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, list):
        return {"prompt_token_ids": prompt}
    if not isinstance(prompt, dict):
        raise InvalidParameter(f"prompt {position} must be text, a dict or token ids, got {type(prompt).__name__}", param="prompts")
    unknown = sorted(map(str, prompt.keys() - set(PROMPT_FIELDS)))
    if unknown:
        raise InvalidParameter(f"prompt {position} has unknown keys {', '.join(unknown)}; known: {', '.join(PROMPT_FIELDS)}", param="prompts")
    fields = {name: value for name, value in prompt.items() if value is not None}
    if "prompt_token_ids" in fields:
        fields.pop("prompt", None)  # as in vLLM, the text beside ids is for the reader
    if not isinstance(fields.get("prompt", ""), str) or not isinstance(fields.get("prompt_token_ids", []), list):
        raise InvalidParameter(f"prompt {position}: prompt must be text and prompt_token_ids a list", param="prompts")
    return fields


def _one_each(name: str, value: Any, count: int, default: Any) -> list[Any]:
    if value is None:
        return [default] * count
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise InvalidParameter(f"{name} has {len(value):,} entries for {count:,} prompts", param=name)
    return list(value)
