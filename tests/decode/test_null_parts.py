"""The null drafter fits its protocol and changes nothing; the group of one neither adds nor collects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from octavo.decode.draft import NullDrafter
from octavo.parallel.local import LocalGroup

if TYPE_CHECKING:
    from octavo.decode.draft import Drafter
    from octavo.parallel import Group


def test_null_drafter() -> None:
    drafter: Drafter = NullDrafter()
    drafter.begin(0, [1, 2])
    assert drafter.draft(0, [1, 2]) == []
    drafter.accept(0, 0, 0)
    drafter.end(0)


def test_local_group() -> None:
    group: Group = LocalGroup()
    x = torch.arange(6.0).view(2, 3)
    assert (group.rank, group.size) == (0, 1)
    assert torch.equal(group.all_reduce(x), x) and torch.equal(group.gather(x, dim=0), x)
