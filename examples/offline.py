"""Offline batch: a list of prompts in, a list of results out. Run: python examples/offline.py"""

from octavo import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Water boils at", "The three primary colours are"]


def main() -> None:
    with LLM("smollm2-135m-instruct", max_model_len=2048) as llm:
        for output in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24)):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r} ({output.outputs[0].finish_reason})")

        messages = [{"role": "user", "content": "Write one sentence about rivers."}]
        (answer,) = llm.chat(messages, SamplingParams(temperature=0.7, seed=7, n=2, max_tokens=40, logprobs=1))
        for choice in answer.outputs:
            print(f"{choice.text!r} (log-probability {choice.cumulative_logprob:.2f})")


if __name__ == "__main__":
    main()
