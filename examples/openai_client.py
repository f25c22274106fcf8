"""The official OpenAI client against a running server. Run `octavo serve` in one shell, then: python examples/openai_client.py"""

import os

from openai import OpenAI


def main() -> None:
    client = OpenAI(base_url=os.environ.get("OCTAVO_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("OCTAVO_API_KEY", "none"))
    model = client.models.list().data[0].id

    reply = client.chat.completions.create(
        model=model,
        messages=[{"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": "Why is the sky blue?"}],
        temperature=0,
        max_tokens=60,
        logprobs=True,
        top_logprobs=2,
        extra_body={"min_p": 0.05, "repetition_penalty": 1.05},  # vLLM's extra parameters
    )
    print(reply.choices[0].message.content)
    for token in (reply.choices[0].logprobs.content or [])[:3]:
        print(f"  {token.token!r}: {token.logprob:.3f}; best: {[(t.token, round(t.logprob, 3)) for t in token.top_logprobs]}")
    print(f"{reply.usage.prompt_tokens} prompt tokens, {reply.usage.completion_tokens} generated")


if __name__ == "__main__":
    main()
