"""Several answers streamed at once: the server batches them. Run `octavo serve` in one shell, then: python examples/streaming.py"""

import asyncio
import os

from openai import AsyncOpenAI

QUESTIONS = ["Name three fruits.", "Name three rivers.", "Name three planets."]


async def ask(client: AsyncOpenAI, model: str, question: str) -> None:
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    parts: list[str] = []
    async for chunk in stream:
        if chunk.choices:
            parts.append(chunk.choices[0].delta.content or "")
        elif chunk.usage is not None:
            print(f"{question} ({chunk.usage.completion_tokens} tokens)\n  {''.join(parts)}")


async def main() -> None:
    url, key = os.environ.get("OCTAVO_URL", "http://127.0.0.1:8000/v1"), os.environ.get("OCTAVO_API_KEY", "none")
    async with AsyncOpenAI(base_url=url, api_key=key) as client:
        model = (await client.models.list()).data[0].id
        await asyncio.gather(*(ask(client, model, question) for question in QUESTIONS))


if __name__ == "__main__":
    asyncio.run(main())
