"""Parts of the engine process that need no model: its socket, its watchdog, errors that cross the border."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import zmq

from octavo import errors
from octavo.core.sampling_params import SamplingParams
from octavo.engine.faults import error_of, fatal_of
from octavo.engine.messages import AddRequest, Deltas, Fatal, Shutdown, encoder, from_engine_decoder
from octavo.engine.process import SocketLink

ROOT = Path(__file__).parents[2]


def test_unreadable_messages_end_their_request_and_nothing_else(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    context = zmq.Context()
    peer = context.socket(zmq.PAIR)
    peer.bind(address)
    link = SocketLink(address)
    good = AddRequest(request_id="good", prompt_token_ids=[1], params=SamplingParams(), max_len=5)
    bad = msgspec.msgpack.decode(encoder.encode(good)) | {"request_id": "bad"}
    bad["params"] = bad["params"] | {"temperature": -1.0}
    for data in (b"\xc1", b"", b"\x93\x01\x02\x03", encoder.encode(bad), encoder.encode(good), encoder.encode(Shutdown())):
        peer.send(data)
    received: list[object] = []
    until = time.monotonic() + 10
    while len(received) < 2 and time.monotonic() < until:
        received += link.receive(0.1)
    assert received == [good, Shutdown()]
    reply = from_engine_decoder.decode(peer.recv())
    assert isinstance(reply, Deltas) and [d.request_id for d in reply.deltas] == ["bad"]
    assert reply.deltas[0].finish_reason == "error" and "temperature" in (reply.deltas[0].error or "")
    peer.close()
    link.close()
    context.term()


def test_params_survive_the_wire() -> None:
    params = SamplingParams(n=3, seed=2**64 - 1, stop=["a"], logit_bias={7: -1.5}, allowed_token_ids=[1, 7], bad_words_token_ids=[[1, 2]], logprobs=0)
    message = AddRequest(request_id="r", prompt_token_ids=[1, 2], params=params, max_len=9, resumed={1: [4, 5]}, finished=[0])
    assert msgspec.msgpack.decode(encoder.encode(message), type=AddRequest) == message


@pytest.mark.parametrize("name", ["OutOfMemory", "TensorMismatch", "ConfigError", "PullError", "EngineDied"])
def test_errors_cross_the_border_as_they_are(name: str) -> None:
    error = getattr(errors, name)("what happened")
    back = error_of(fatal_of(error))
    assert type(back) is type(error) and back.message == "what happened"


def test_other_errors_get_a_place_in_the_tree() -> None:
    assert isinstance(error_of(fatal_of(MemoryError())), errors.OutOfMemory)
    assert isinstance(error_of(fatal_of(KeyError("x"))), errors.EngineDied)
    assert isinstance(error_of(Fatal("annotations", "no class")), errors.EngineDied)


WATCH = """
import time
from octavo.engine.process import watch
class Loop:
    idle, heartbeat = {idle}, 0
loop = Loop()
watch(loop, 0.4)
for _ in range(12):
    time.sleep(0.1)
    loop.heartbeat += {step}
"""


@pytest.mark.parametrize(("idle", "step", "dumps"), [(False, 0, True), (False, 1, False), (True, 0, False)], ids=["stuck", "working", "idle"])
def test_the_watchdog_shows_where_a_stuck_step_is(idle: bool, step: int, dumps: bool) -> None:
    code = WATCH.format(idle=idle, step=step)
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert ("most recent call first" in run.stderr) is dumps
