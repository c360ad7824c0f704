"""A cache of the newest entries, which threads share."""

import threading
from collections import deque

from scoremod.fork_safety import Lock


class BoundedCache(dict):
    """A dict of at most `limit` entries: a new one takes the place of the oldest. Several threads may read it and add to it at once."""

    def __init__(self, limit):
        super().__init__()
        self._limit, self._order = limit, deque()
        # A dropped value may run code of its own as it goes, which may add an entry.
        self._lock = Lock(threading.RLock)

    def __setitem__(self, key, value):
        dropped = []  # freed after the lock
        with self._lock:
            before = len(self)
            super().__setitem__(key, value)
            if len(self) > before:  # not asked of the key, whose hash may take longer than all else
                self._order.append(key)
                while len(self) > self._limit:
                    dropped.append(self.pop(self._order.popleft(), None))

    def is_full(self):
        """Whether a new entry takes the place of another."""
        return len(self) >= self._limit

    def clear(self):
        with self._lock:
            super().clear()
            self._order.clear()
