"""The wire protocol between service and engine: msgspec structs over msgpack, or the same objects passed in process.

service -> engine: AddRequest, Abort, Shutdown, GetStats.     engine -> service: Progress, Ready, Deltas, Stats, Fatal.
A supervising client adds EngineLost, which never crosses the wire: a dead process sends nothing.
"""

from __future__ import annotations

import msgspec

from octavo.config import EngineConfig
from octavo.core.plan import TokenDelta  # noqa: TC001  msgspec reads the annotations
from octavo.core.sampling_params import SamplingParams  # noqa: TC001
from octavo.core.structured import Thinking  # noqa: TC001


class AddRequest(msgspec.Struct, tag=True, kw_only=True):
    """Generate ``params.n`` sequences. ``resumed[i]`` holds ids that sequence i had already emitted before a restart;
    ``finished`` names sequences that had already ended and must not run again. ``max_len`` bounds prompt plus output.
    ``thinking``: where ``params.structured_outputs`` begin to hold, if not at the first token."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_len: int
    eos_token_ids: list[int] = []
    priority: int = 0
    arrival: float = 0.0  # seconds, time.time()
    cache_salt: str = ""
    resumed: dict[int, list[int]] = {}
    finished: list[int] = []
    thinking: Thinking | None = None


class Abort(msgspec.Struct, tag=True):
    """End a request; ``index`` ends one of its sequences only. Unknown ids are ignored: an abort may cross a finish."""

    request_id: str
    index: int | None = None


class Shutdown(msgspec.Struct, tag=True):
    """Abort what is live, send its terminal events, and stop."""


class GetStats(msgspec.Struct, tag=True):
    pass


class PhaseTime(msgspec.Struct):
    name: str
    seconds: float


class EngineInfo(msgspec.Struct, kw_only=True):
    """Facts about a started engine. Byte counts come from the memory plan."""

    model_type: str
    backend: str
    isa: str
    threads: int
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int
    kv_bytes_per_token: int
    fallbacks: list[str] = []
    phases: list[PhaseTime] = []
    notes: list[str] = []  # lines for the log: what was chosen automatically and the number to change


class Ready(msgspec.Struct, tag=True):
    info: EngineInfo


class Progress(msgspec.Struct, tag=True):
    """A start-up phase moved on. ``total`` 0 means unknown."""

    phase: str
    done: int
    total: int


class Deltas(msgspec.Struct, tag=True):
    deltas: list[TokenDelta]


class Stats(msgspec.Struct, tag=True, kw_only=True):
    """A snapshot; counters grow for the life of the engine process."""

    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    kv_waste: float = 0.0  # share of allocated KV slots that hold no token
    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    last_step_age: float = 0.0  # seconds since a step finished


class Fatal(msgspec.Struct, tag=True):
    """The engine cannot start or go on. ``kind`` is the name of the error class in :mod:`octavo.errors`."""

    kind: str
    message: str


class EngineLost(msgspec.Struct, tag=True, kw_only=True):
    """The engine process ended while it should have run. Either a ``Ready`` follows (after about ``delay`` seconds plus the start-up time) or a
    ``Fatal``. Requests that were live are gone from the engine; see :class:`octavo.engine.supervisor.SupervisedClient` for who resubmits."""

    message: str
    attempt: int  # 1 for the first restart within the window
    delay: float  # seconds before the new process is started


ToEngine = AddRequest | Abort | Shutdown | GetStats
FromEngine = Ready | Progress | Deltas | Stats | Fatal
ClientEvent = FromEngine | EngineLost

to_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
from_engine_decoder = msgspec.msgpack.Decoder(FromEngine)
encoder = msgspec.msgpack.Encoder()
config_decoder = msgspec.json.Decoder(EngineConfig)
