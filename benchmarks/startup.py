"""From ``octavo serve`` to the first streamed token, beside what ``import torch`` alone takes, in turn on the same machine.

    python benchmarks/startup.py [MODEL] [--runs 5]

The model must have been pulled. The request is sent as soon as the server accepts connections, and waits while the model loads.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import statistics
import subprocess
import sys
import time


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def import_torch() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


def first_token(model: str) -> tuple[float, float]:
    """Seconds from the start of the command until it accepts connections, and until the first streamed token."""
    port = free_port()
    body = json.dumps({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "stream": True})
    start = time.perf_counter()
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    accepting = None
    try:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            try:
                connection.connect()
            except ConnectionRefusedError:
                if server.poll() is not None:
                    raise SystemExit("octavo serve ended; run it by hand to see why") from None
                time.sleep(0.005)
                continue
            accepting = accepting or time.perf_counter() - start
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            line = response.readline()
            if response.status != 200 or not line.startswith(b"data: "):
                raise SystemExit(f"{response.status} {line!r}")
            return accepting, time.perf_counter() - start
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    import_torch(), first_token(args.model)  # warm the file cache
    torch, accepting, token = [], [], []
    for _ in range(args.runs):
        torch.append(import_torch())
        a, t = first_token(args.model)
        accepting.append(a)
        token.append(t)
    middle = statistics.median
    over = [t - i for t, i in zip(token, torch, strict=True)]
    figures = {
        "import_torch_s": middle(torch),
        "accepting_s": middle(accepting),
        "first_token_s": middle(token),
        "over_import_torch_s": middle(over),
        "over_range_s": [min(over), max(over)],
    }
    print(json.dumps({k: [round(x, 2) for x in v] if isinstance(v, list) else round(v, 2) for k, v in figures.items()}))


if __name__ == "__main__":
    main()
