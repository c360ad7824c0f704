"""Locks and attributes that a forked child can use. There, a lock that another thread of its parent held would never be free."""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_locks = weakref.WeakSet()


class Lock:
    """A lock for `with` that a forked child has anew. make: threading.Lock, or threading.RLock."""

    def __init__(self, make: Callable[[], Any] = threading.Lock):
        self._make = make
        self.renew()
        _locks.add(self)

    def renew(self):
        self._lock = self._make()

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *error):
        self._lock.release()


def _renew_all():
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)


class LazyAttribute:
    """As functools.cached_property, which has a lock in Python 3.11. Threads that ask at once may each compute it."""

    def __init__(self, function):
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, instance, owner=None) -> Any:
        if instance is None:
            return self
        # Found in the instance from now on, before this is asked.
        value = instance.__dict__[self._name] = self._function(instance)
        return value
