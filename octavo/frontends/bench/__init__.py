"""``octavo bench``: latency and throughput offline, load on any OpenAI-compatible server, start-up time, and kernels against their floors."""
