"""`python -m tests.recipes.warm_process`: a process that has imported everything, and forks one for each `collab` command.

The forks are real processes, to be killed at will, and start at once; the argument is a first command, which loads whatever is
loaded late. Commands are JSON lines on stdin; the answers are the
fork's process id and, when it has ended, its exit status (negative: the signal). Its output goes to `out.txt` and `err.txt`.
"""

import json
import os
import signal
import sys
import traceback


def main() -> None:
    import simulators.chat_models.server  # noqa: F401
    from recipes.command_line import main as collab

    _status(collab, json.loads(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background would have it ignored
            for name, stream in (("out.txt", 1), ("err.txt", 2)):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
            os._exit(_status(collab, arguments))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _status(collab: object, arguments: list[str]) -> int:
    try:
        collab(arguments)  # type: ignore[operator]
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    main()
