"""Functions that worker tests run inside workers."""

import os
import signal
import sys
import time


def echo(argument):
    return argument


def process_id(argument):
    return os.getpid()


def fail(argument):
    raise RuntimeError(f"no {argument}")


def hang(argument):
    while True:
        pass


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def die(argument):
    os.kill(os.getpid(), signal.SIGKILL)


def shout(argument):
    print("noise on the output")
    os.write(1, b"more noise")
    print("noise on the error output", file=sys.stderr)
    return argument


def hoard(megabytes):
    return len(bytearray(megabytes << 20))


def unspeakable(argument):
    return {1, 2}


def modules(argument):
    return sorted(sys.modules)
