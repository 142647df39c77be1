"""Turns and prefixes: which state a prompt may continue from, in memory and on disk."""

from splashlite.sessions.disk import Disk, fingerprint
from splashlite.sessions.session import PREFILL_CHUNK, Session
from splashlite.sessions.store import Store

__all__ = ["PREFILL_CHUNK", "Disk", "Session", "Store", "fingerprint"]
