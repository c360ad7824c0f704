"""Asks a device what becomes of a process's contexts, modules, streams, events and memory when somebody resets it: the facts behind
src/backend/cuda/device/context.hpp, and what tests/fake_cuda does. Each question has a process of its own, since some end in a crash.

python3 tools/device/reset_probe.py
"""

import ctypes
import os
import sys

PTX = b".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry k(){%s;}\n"
NON_BLOCKING, NO_TIMING, TO_HOST = 1, 2, 2
POINTER, SIZE, BY_REFERENCE = ctypes.c_void_p, ctypes.c_size_t, ctypes.byref


class PoolProperties(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "handles", "location", "device")] + [("rest", ctypes.c_char * 128)]


def made(function, *arguments):
    """The handle that a function gives."""
    handle = POINTER()
    status = function(BY_REFERENCE(handle), *arguments)
    if status != 0:
        raise RuntimeError(f"{function.__name__}: {status}")
    return handle


def context(driver):
    """The current context's handle, the status of asking for its id, and the id."""
    handle, number = POINTER(), ctypes.c_uint64()
    driver.cuCtxGetCurrent(BY_REFERENCE(handle))
    return handle.value, driver.cuCtxGetId(handle, BY_REFERENCE(number)), number.value


def kernel_of(driver, instruction):
    module = made(driver.cuModuleLoadData, PTX % instruction)
    return module, made(driver.cuModuleGetFunction, module, b"k")


def launch(driver, kernel):
    return driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)


def contexts(driver, runtime):
    yield context(driver)
    yield "reset", runtime.cudaDeviceReset(), context(driver)
    yield "runtime called", runtime.cudaFree(None), context(driver)


def modules(driver, runtime):
    module, kernel = kernel_of(driver, b"ret")
    runtime.cudaDeviceReset()
    yield "launch", launch(driver, kernel)
    runtime.cudaFree(None)
    yield "launch in the new context", launch(driver, kernel)
    yield "unload in the new context", driver.cuModuleUnload(module)


def streams(driver, runtime):
    stream = made(runtime.cudaStreamCreateWithFlags, NON_BLOCKING)
    runtime.cudaDeviceReset()
    runtime.cudaFree(None)
    yield "synchronize", runtime.cudaStreamSynchronize(stream)


def event_after_reset(runtime):
    event = made(runtime.cudaEventCreateWithFlags, NO_TIMING)
    runtime.cudaEventRecord(event, None)
    runtime.cudaDeviceReset()
    runtime.cudaFree(None)
    return event


def query_of_an_event(driver, runtime):
    yield driver.cuEventQuery(event_after_reset(runtime))


def end_of_an_event(driver, runtime):
    yield runtime.cudaEventDestroy(event_after_reset(runtime))


def memory(driver, runtime):
    own, pool = made(runtime.cudaMalloc, SIZE(4096)), made(runtime.cudaMemPoolCreate, BY_REFERENCE(PoolProperties(1, 0, 1, 0)))
    pooled = made(runtime.cudaMallocFromPoolAsync, SIZE(4096), pool, None)
    runtime.cudaMemset(pooled, 7, SIZE(4096))
    runtime.cudaDeviceSynchronize()
    runtime.cudaDeviceReset()
    runtime.cudaFree(None)
    attributes, copied = (ctypes.c_int * 64)(), ctypes.create_string_buffer(4096)
    for name, data in (("own", own), ("of a pool", pooled)):
        yield name, "known as", runtime.cudaPointerGetAttributes(attributes, data), attributes[0]
    yield "copy from the pool's", runtime.cudaMemcpy(copied, pooled, SIZE(4096), TO_HOST), copied.raw[:2]
    yield "allocate of the pool", runtime.cudaMallocFromPoolAsync(BY_REFERENCE(POINTER()), SIZE(4096), pool, None)
    yield "free own", runtime.cudaFree(own)
    yield "free the pool's", runtime.cudaFree(pooled)


def trap(driver, runtime):
    """A kernel's error that stays, and a reset after it."""
    _, kernel = kernel_of(driver, b"trap")
    number = ctypes.c_int()
    yield "launch, wait", launch(driver, kernel), driver.cuCtxSynchronize(), context(driver)
    yield "device, set device", runtime.cudaGetDevice(BY_REFERENCE(number)), runtime.cudaSetDevice(0)
    yield "free, launch", runtime.cudaFree(None), launch(driver, kernel)
    yield "reset", runtime.cudaDeviceReset(), context(driver)
    yield "runtime called", runtime.cudaFree(None), context(driver)


def main():
    for question in (contexts, modules, streams, query_of_an_event, end_of_an_event, memory, trap):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            driver, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")
            runtime.cudaFree(None)
            for answer in question(driver, runtime):
                print(question.__name__, *(answer if isinstance(answer, tuple) else (answer,)), flush=True)
            os._exit(0)
        signal = os.waitpid(child, 0)[1]
        if signal != 0:
            print(question.__name__, "ended with signal", signal)


if __name__ == "__main__":
    main()
