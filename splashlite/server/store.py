"""Responses that a later request may continue from: in memory, bounded in number and bytes, oldest use out
first."""

import json
from collections import OrderedDict
from dataclasses import dataclass

RESPONSES = 256
BYTES = 64 * 2**20


@dataclass(frozen=True)
class Stored:
    """A finished response as JSON bytes, and its conversation (without instructions) as messages for the
    template."""

    reply: bytes
    messages: list[dict]
    size_bytes: int


class Store:
    def __init__(self):
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._bytes = 0

    def keep(self, id: str, reply: bytes, messages: list[dict]) -> None:
        size = len(reply) + len(json.dumps(messages))
        if size > BYTES:
            return
        self._kept[id] = Stored(reply, messages, size)
        self._bytes += size
        while self._bytes > BYTES or len(self._kept) > RESPONSES:
            self._bytes -= self._kept.popitem(last=False)[1].size_bytes

    def get(self, id: str) -> Stored | None:
        if id in self._kept:
            self._kept.move_to_end(id)
        return self._kept.get(id)

    def drop(self, id: str) -> bool:
        stored = self._kept.pop(id, None)
        self._bytes -= stored.size_bytes if stored else 0
        return stored is not None
