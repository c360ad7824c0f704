"""Runs a function in a child of fork()."""

import contextlib
import gc
import os
import signal
import sys
import threading
import time
import traceback


@contextlib.contextmanager
def while_another_thread(calls):
    """Runs the block while another thread makes one call after the other."""
    stop = threading.Event()

    def call():
        while not stop.is_set():
            calls()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def succeeds_in_child(function, seconds=60.0):
    """Whether the function returns in a forked child. One that waits for ever, as for a lock of a thread that is not there, is ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        gc.disable()  # arrays of JAX that other tests left would wait for XLA's threads, which are the parent's
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done == child:
            return status == 0
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("the child waits for ever", file=sys.stderr)
    return False
