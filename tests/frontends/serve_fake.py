"""Run as a program: ``octavo serve`` with the fake engine instead of the real one, everything else as it is.

    python -m tests.frontends.serve_fake TOKENIZER_FOLDER STEP_SECONDS [options of serve]
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from octavo.frontends.cli import main as cli
from octavo.frontends.cli import serve
from octavo.service import launch
from octavo.service.service import Service
from tests.service.fake import INFO, FakeClient, fixed_script
from tests.service.texts import make_text

FOLDER, STEP, *OPTIONS = sys.argv[1:]


def fake_service(engine: Any, options: Any) -> Service:
    text = make_text(Path(FOLDER))
    info = msgspec.structs.replace(INFO, vocab_size=text.tokenizer.vocab_size)
    client = FakeClient(fixed_script([70]), info, step_seconds=float(STEP), start_seconds=0.05)
    return Service(client, lambda: text, options)


serve.model_path = lambda model: Path(model)
serve.start_engine = lambda config, waiting=None: SimpleNamespace(kill=lambda: None, config=config)  # type: ignore[assignment, return-value]
launch.process_service = fake_service
sys.argv = ["octavo", "serve", "fake", *OPTIONS]
cli.run()
