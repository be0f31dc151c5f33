"""Tables of statistics added up on the cluster, in a tree of pure tasks.

The driver holds references and nothing else. A task that is lost with its node is simply done again
by Ray, from the same inputs; what it gives is counted once, because it is one and the same object.
The classes lie in heaps, so no task ever holds more than a few blocks, or a few tables of one heap.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fecam.distributed.cluster import the_ray
from fecam.distributed.lessons import Plan, add_up, pack, split
from fecam.distributed.reading import Account

FAN = 8
"""So many tables are added up at a time."""
MOST_HEAPS = 64


class Tree:
    """The sum of all tables that were added."""

    def __init__(self, plan: Plan, heaps: int, processors: float) -> None:
        ray = the_ray()
        options: dict[str, Any] = {
            "num_cpus": processors,
            "max_retries": -1,
            "scheduling_strategy": "SPREAD",
        }
        self._ray, self._plan, self._heaps = ray, ray.put(plan), heaps
        self._sort = ray.remote(num_returns=heaps + 1, **options)(_sorted)
        self._sum = ray.remote(**options)(_summed)
        self._waiting: list[Any] = []
        self._levels: list[list[list[Any]]] = [[] for _ in range(heaps)]
        self._accounts: list[Any] = []
        self.account = Account()
        """What is known by now of all items."""

    def add(self, block: Any) -> None:
        """Add one more table, by its reference."""
        self._waiting.append(block)
        if len(self._waiting) == FAN:
            self._sort_waiting()
        self._hear(at_most=4 * self._heaps + FAN)

    def finish(self) -> list[Any]:
        """References to the sums, a table a heap."""
        self._sort_waiting()
        self._hear(at_most=0)
        for heap, levels in enumerate(self._levels):
            left = [one for level in levels for one in level]
            while len(left) > 1:
                some, left = left[:FAN], left[FAN:]
                left.append(self._sum.remote(self._plan, *some))
            self._levels[heap] = [left]
        return [levels[0][0] for levels in self._levels if levels[0]]

    def _sort_waiting(self) -> None:
        if self._waiting:
            *heaps, account = self._sort.remote(self._plan, self._heaps, *self._waiting)
            self._accounts.append(account)
            self._waiting = []
            for heap, table in enumerate(heaps):
                self._carry(self._levels[heap], 0, table)

    def _carry(self, levels: list[list[Any]], level: int, table: Any) -> None:
        """As one adds one to a number: what is full moves to the next place."""
        if level == len(levels):
            levels.append([])
        levels[level].append(table)
        if len(levels[level]) == FAN:
            full, levels[level] = levels[level], []
            self._carry(levels, level + 1, self._sum.remote(self._plan, *full))

    def _hear(self, at_most: int) -> None:
        """Take the accounts that have come; wait where too many are still out."""
        while self._accounts:
            block = len(self._accounts) > at_most
            done, self._accounts = self._ray.wait(
                self._accounts, num_returns=1, timeout=None if block else 0
            )
            if not done:
                return
            for text in self._ray.get(done):
                self.account = self.account.add(Account(**json.loads(text)))


def _sorted(plan: Plan, heaps: int, *tables: Any) -> list[Any]:
    """The sum of some tables, a table a heap, and their account."""
    parts, account = add_up(tables, plan)
    return [*(pack(some, None, plan) for some in split(parts, heaps)), json.dumps(asdict(account))]


def _summed(plan: Plan, *tables: Any) -> Any:
    """The sum of some tables of one heap."""
    parts, _ = add_up(tables, plan)
    return pack(parts, None, plan)
