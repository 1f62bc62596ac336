"""`python -m tests.recipes.forked_builds`: imports what a dry run needs, and forks a process for each `collab` command.

The forks are real processes, to be killed at will, and start at once. Commands are JSON lines on stdin; the answers are the
fork's process id and, when it has ended, its exit status (negative: the signal). Its output goes to `out.txt` and `err.txt`.
"""

import json
import os
import sys
import traceback


def main() -> None:
    import pyarrow.parquet  # noqa: F401

    import recipes.build
    import recipes.configuration.choices  # noqa: F401
    from recipes.command_line import main as collab

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            for name, stream in (("out.txt", 1), ("err.txt", 2)):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
            status = 1
            try:
                collab(json.loads(line))
                status = 0
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
