"""Every architecture that can be loaded, as one table: what ``docs/models.md`` lists and :mod:`octavo.models.registry` looks up."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """``architecture`` and ``model_type`` as in configurations (no type: another entry has it); ``builder`` is module:function in octavo.models,
    called with (scope, config); ``gguf`` is general.architecture of GGUF files; ``models`` says who is built so."""

    architecture: str
    model_type: str
    builder: str
    gguf: str
    models: str


TABLE = (
    Family("LlamaForCausalLM", "llama", "llama:llama", "llama", "Llama 2 and 3, SmolLM2, TinyLlama, Yi"),
    Family("MistralForCausalLM", "mistral", "llama:mistral", "llama", "Mistral 7B, Nemo, Small"),
    Family("Qwen2ForCausalLM", "qwen2", "qwen:qwen2", "qwen2", "Qwen2, Qwen2.5"),
    Family("Qwen3ForCausalLM", "qwen3", "qwen:qwen3", "qwen3", "Qwen3"),
    Family("GemmaForCausalLM", "gemma", "gemma:gemma", "gemma", "Gemma, CodeGemma"),
    Family("Gemma2ForCausalLM", "gemma2", "gemma:gemma2", "gemma2", "Gemma 2"),
    Family("Gemma3ForCausalLM", "gemma3_text", "gemma:gemma3", "gemma3", "Gemma 3 (text)"),
    Family("PhiForCausalLM", "phi", "phi:phi", "phi2", "Phi-1, 1.5, 2"),
    Family("Phi3ForCausalLM", "phi3", "phi:phi3", "phi3", "Phi-3, 3.5 and 4 (mini, medium)"),
    Family("SmolLM3ForCausalLM", "smollm3", "smollm:smollm3", "smollm3", "SmolLM3"),
    Family("OlmoForCausalLM", "olmo", "olmo:olmo", "", "OLMo"),
    Family("Olmo2ForCausalLM", "olmo2", "olmo:olmo2", "olmo2", "OLMo 2"),
    Family("GraniteForCausalLM", "granite", "granite:granite", "granite", "Granite 3"),
    Family("MiniCPMForCausalLM", "minicpm", "granite:minicpm", "", "MiniCPM 1, 2"),
    Family("StableLmForCausalLM", "stablelm", "stablelm:stablelm", "stablelm", "StableLM 2, 3B, Zephyr"),
    Family("Starcoder2ForCausalLM", "starcoder2", "starcoder:starcoder2", "starcoder2", "StarCoder2"),
    Family("GPT2LMHeadModel", "gpt2", "gpt:gpt2", "gpt2", "GPT-2"),
    Family("GPTBigCodeForCausalLM", "gpt_bigcode", "gpt:gpt_bigcode", "", "StarCoder, SantaCoder"),
    Family("GPTJForCausalLM", "gptj", "gpt:gptj", "", "GPT-J 6B"),
    Family("GPTNeoXForCausalLM", "gpt_neox", "gpt:gpt_neox", "gptneox", "GPT-NeoX, Pythia, Dolly"),
    Family("OPTForCausalLM", "opt", "opt:opt", "", "OPT, Galactica"),
    Family("BloomForCausalLM", "bloom", "bloom:bloom", "bloom", "BLOOM, BLOOMZ"),
    Family("MptForCausalLM", "mpt", "mpt:mpt", "", "MPT"),
    Family("MPTForCausalLM", "", "mpt:mpt", "", "MPT, as first published"),
    Family("FalconForCausalLM", "falcon", "falcon:falcon", "falcon", "Falcon 1B, 7B, 40B, 180B, Falcon 2 11B"),
    Family("RWForCausalLM", "RefinedWeb", "falcon:falcon", "", "Falcon, as first published"),
    Family("CohereForCausalLM", "cohere", "cohere:cohere", "command-r", "Command R and R+, Aya"),
    Family("Cohere2ForCausalLM", "cohere2", "cohere:cohere2", "", "Command R7B and A"),
    Family("InternLM2ForCausalLM", "internlm2", "internlm:internlm2", "internlm2", "InternLM2, 2.5"),
    Family("BaichuanForCausalLM", "baichuan", "baichuan:baichuan", "", "Baichuan 13B, Baichuan 2"),
    Family("BaiChuanForCausalLM", "", "baichuan:baichuan_7b", "", "Baichuan 7B"),
    Family("GlmForCausalLM", "glm", "glm:glm", "", "GLM-4 9B, GLM-Edge"),
    Family("Glm4ForCausalLM", "glm4", "glm:glm4", "", "GLM-4-0414"),
    Family("ChatGLMModel", "chatglm", "glm:chatglm", "", "ChatGLM2, ChatGLM3, GLM-4, as first published"),
    Family("ChatGLMForConditionalGeneration", "", "glm:chatglm", "", "the same"),
    Family("NemotronForCausalLM", "nemotron", "nemotron:nemotron", "nemotron", "Nemotron 4, Minitron"),
    Family("Ernie4_5ForCausalLM", "ernie4_5", "llama:ernie", "ernie4_5", "ERNIE 4.5 (dense)"),
    Family("SeedOssForCausalLM", "seed_oss", "llama:seed_oss", "seed_oss", "Seed-OSS"),
)
ARCHITECTURES = {family.architecture: family.builder for family in TABLE}
BUILDERS = ARCHITECTURES | {family.model_type: family.builder for family in TABLE if family.model_type}
