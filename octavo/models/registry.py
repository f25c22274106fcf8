"""Names of model families to lazy imports, and the one way to load a model."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, cast

from octavo.errors import ConfigError, UnsupportedModel
from octavo.layers.scope import Scope
from octavo.models.config import ModelConfig
from octavo.parallel.local import LocalGroup
from octavo.weights.loader import WeightLoader

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.backend.base import Backend
    from octavo.checkpoint.base import Checkpoint
    from octavo.models.base import Model
    from octavo.parallel import Group

# ``architectures`` of a configuration -> module:builder, called with (scope, config).
ARCHITECTURES = {
    "LlamaForCausalLM": "octavo.models.llama:llama",
    "MistralForCausalLM": "octavo.models.llama:mistral",
    "SeedOssForCausalLM": "octavo.models.llama:seed_oss",
    "Ernie4_5ForCausalLM": "octavo.models.llama:ernie",
    "Qwen2ForCausalLM": "octavo.models.qwen:qwen2",
    "Qwen3ForCausalLM": "octavo.models.qwen:qwen3",
    "GemmaForCausalLM": "octavo.models.gemma:gemma",
    "Gemma2ForCausalLM": "octavo.models.gemma:gemma2",
    "Gemma3ForCausalLM": "octavo.models.gemma:gemma3",
    "PhiForCausalLM": "octavo.models.phi:phi",
    "Phi3ForCausalLM": "octavo.models.phi:phi3",
    "SmolLM3ForCausalLM": "octavo.models.smollm:smollm3",
    "OlmoForCausalLM": "octavo.models.olmo:olmo",
    "Olmo2ForCausalLM": "octavo.models.olmo:olmo2",
    "GraniteForCausalLM": "octavo.models.granite:granite",
    "MiniCPMForCausalLM": "octavo.models.granite:minicpm",
    "StableLmForCausalLM": "octavo.models.stablelm:stablelm",
    "Starcoder2ForCausalLM": "octavo.models.starcoder:starcoder2",
    "GPT2LMHeadModel": "octavo.models.gpt:gpt2",
    "GPTBigCodeForCausalLM": "octavo.models.gpt:gpt_bigcode",
    "GPTJForCausalLM": "octavo.models.gpt:gptj",
    "GPTNeoXForCausalLM": "octavo.models.gpt:gpt_neox",
    "OPTForCausalLM": "octavo.models.opt:opt",
    "BloomForCausalLM": "octavo.models.bloom:bloom",
    "MptForCausalLM": "octavo.models.mpt:mpt",
    "MPTForCausalLM": "octavo.models.mpt:mpt",
    "FalconForCausalLM": "octavo.models.falcon:falcon",
    "RWForCausalLM": "octavo.models.falcon:falcon",
    "CohereForCausalLM": "octavo.models.cohere:cohere",
    "Cohere2ForCausalLM": "octavo.models.cohere:cohere2",
    "GlmForCausalLM": "octavo.models.glm:glm",
    "Glm4ForCausalLM": "octavo.models.glm:glm4",
    "ChatGLMModel": "octavo.models.glm:chatglm",
    "ChatGLMForConditionalGeneration": "octavo.models.glm:chatglm",
    "NemotronForCausalLM": "octavo.models.nemotron:nemotron",
    "InternLM2ForCausalLM": "octavo.models.internlm:internlm2",
    "BaichuanForCausalLM": "octavo.models.baichuan:baichuan",
    "BaiChuanForCausalLM": "octavo.models.baichuan:baichuan_7b",
}
# ``model_type`` of a configuration without architectures.
MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "granite": "GraniteForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
    "gptj": "GPTJForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "opt": "OPTForCausalLM",
    "bloom": "BloomForCausalLM",
    "mpt": "MptForCausalLM",
    "falcon": "FalconForCausalLM",
    "RefinedWeb": "RWForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "chatglm": "ChatGLMModel",
    "nemotron": "NemotronForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "baichuan": "BaichuanForCausalLM",
}
FAMILIES = {**ARCHITECTURES, **{kind: ARCHITECTURES[name] for kind, name in MODEL_TYPES.items()}}


def load_model(
    checkpoint: Checkpoint,
    backend: Backend,
    *,
    group: Group | None = None,
    max_positions: int | None = None,
    weights: str = "dense",
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Build the model that ``checkpoint`` describes and load its weights; ``progress(done, total)`` in bytes.

    ``max_positions`` bounds the sequences it must compute (its position tables are that long); None is all the model was made for.
    ``weights`` is the scheme of weight matrices: see ``EngineConfig.weights``.
    Raises UnsupportedModel, FormatError (configuration), TensorMismatch (weights) or ConfigError (``max_positions`` or ``group`` do not fit).
    """
    config = ModelConfig(checkpoint.config)
    build = find_family(config)
    group = group or LocalGroup()
    loader = WeightLoader(checkpoint, backend, group, progress)
    model = build(Scope(loader, backend, group, _positions(config, max_positions), scheme=weights), config)
    loader.finish()
    return model


def find_family(config: ModelConfig) -> Callable[[Scope, ModelConfig], Model]:
    """The builder of a configuration's architecture. Raises UnsupportedModel with names that look alike."""
    names = [name for name in config.values.get("architectures") or [] if isinstance(name, str)]
    names = names or [config.text("model_type", "")]
    for name in names:
        if name in FAMILIES:
            module, builder = FAMILIES[name].split(":")
            return cast("Callable[[Scope, ModelConfig], Model]", getattr(import_module(module), builder))
    close = get_close_matches(names[0], FAMILIES, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise UnsupportedModel(f"architecture {names[0]!r} is not supported; {hint}known: {', '.join(FAMILIES)}")


def _positions(config: ModelConfig, asked: int | None) -> int:
    most = config.integer("max_position_embeddings")
    if asked is not None and not 1 <= asked <= most:
        raise ConfigError(f"{asked} positions were asked, the model holds 1 to {most}")
    return asked or most
