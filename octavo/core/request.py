"""A sequence being generated, as the scheduler sees it: token ids and counts, no tensors, no text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.plan import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.core.plan import PositionLogprobs
    from octavo.core.sampling_params import SamplingParams

WAITING, RUNNING, FINISHED = "waiting", "running", "finished"


class Request:
    """One sequence of one request (``n`` > 1 makes n of these; the others name the first as ``parent`` and fork from it).

    Counts, all in tokens::

        |---------------- token_ids: prompt + output ----------------|-- draft --|
        |------ num_computed: in the KV cache ------|
        |------------------------ capacity: blocks reserved ----------------------|

    ``known = len(token_ids)``; a request always wants ``known + len(draft) - num_computed`` tokens computed.
    """

    __slots__ = (
        "arrival", "block_hashes", "block_ids", "cache_salt", "capacity", "draft", "eos_token_ids", "forks", "gate", "index", "max_len",
        "min_len", "num_cached", "num_computed", "num_preemptions", "num_published", "order", "params", "parent", "priority", "prompt_len",
        "prompt_logprobs", "request_id", "row", "seq", "skipped", "slot", "status", "stop_ids", "token_ids", "unreported",
    )

    def __init__(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams,
        *,
        index: int = 0,
        prompt_len: int | None = None,
        max_len: int,
        eos_token_ids: list[int] | None = None,
        priority: int = 0,
        arrival: float = 0.0,
        cache_salt: str = "",
        parent: Request | None = None,
        gate: Callable[[], bool] | None = None,
    ) -> None:
        """``max_len`` bounds prompt plus output (context and max_tokens, whichever is smaller). ``prompt_len`` is given when resuming.

        ``gate`` says whether the request may start; it is asked before each step until it says yes, and ends the request by raising.
        """
        self.request_id, self.index, self.params = request_id, index, params
        self.token_ids = token_ids
        self.prompt_len = len(token_ids) if prompt_len is None else prompt_len
        self.max_len = max_len
        self.min_len = self.prompt_len + params.min_tokens
        self.eos_token_ids = list(eos_token_ids or ())
        self.stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(self.eos_token_ids))
        self.priority, self.arrival, self.cache_salt = priority, arrival, cache_salt
        self.parent, self.gate = parent, gate
        self.forks: list[Request] = []
        self.status = WAITING
        self.slot = -1
        self.seq = 0  # order of arrival, set by the scheduler
        self.order: tuple[float, int] = (0.0, 0)  # place in the queue (policy rank, seq), set by the scheduler
        self.skipped = 0  # times a later request was admitted first because this one did not fit
        self.num_computed = 0
        self.num_cached: int | None = None  # prefix hit at first admission
        self.num_preemptions = 0
        self.draft: list[int] = []
        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []  # chained hash of each full block known so far
        self.num_published = 0  # leading blocks that the prefix cache has seen
        self.capacity = 0  # positions below this may be written without asking the cache
        self.unreported = True  # no delta has been sent yet
        # Collected until the first delta; None: not asked for, or sent (a resumed request sent them with its first token).
        wanted = params.prompt_logprobs is not None and len(token_ids) == self.prompt_len
        self.prompt_logprobs: list[PositionLogprobs] | None = [] if wanted else None
        self.row = Row(-1, 0, 0)  # reused every step

    @property
    def key(self) -> tuple[str, int]:
        return self.request_id, self.index

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.prompt_len
