"""The hostile side: holds the code under test and answers calls to it with plain values.

A process of its own: it has the solution and the calls, never the tests, the expected values or the channel of the verdict.
Whatever the solution does to this process, all it can change is what its own functions seem to return.
"""

# Sent as text: `values` stands beside this file only inside the sandbox, and type hints beyond the signatures cost start-up time.
# mypy: ignore-errors

import os
import sys

from values import NotPlain, decode, encode

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def main() -> None:
    """`solution_server.py serve PRELUDE SOLUTION` answers calls; `... script SOLUTION` runs the solution as a script."""
    _put_on_strict_filter()
    if sys.argv[1] == "script":
        source = _read(sys.argv[2])
        sys.argv = ["solution.py"]
        exec(compile(source, "solution.py", "exec"), {"__name__": "__main__", "__file__": "solution.py"})
    else:
        _serve(_read(sys.argv[2]), _read(sys.argv[3]))


def _serve(prelude: str, solution: str) -> None:
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)

    def reply(value) -> None:
        try:
            text = encode(value)
        except NotPlain:
            text = encode(("raised", "ValueError", "the result is too large"))
        data = text.encode("utf-8", "surrogatepass")
        replies.write(b"%d\n" % len(data) + data)
        replies.flush()

    module = type(sys)("solution")
    sys.modules["solution"] = module
    namespace = module.__dict__
    try:
        exec(compile(prelude, "prelude.py", "exec"), namespace)
        exec(compile(solution, "solution.py", "exec"), namespace)
        reply(("loaded", sorted(name for name, value in namespace.items() if callable(value) and name.isidentifier())))
    except BaseException as error:
        reply(("raised", type(error).__name__, str(error)[:500]))
        return
    while line := requests.readline():
        kind, *details = decode(requests.read(int(line)).decode("utf-8", "surrogatepass"))
        reply(_call(namespace, *details) if kind == "call" else _unit_tests(namespace, *details))


def _call(namespace, name, arguments, keywords):
    """Call a function; also return its arguments where it changed them, so that tests of in-place work see the change."""
    try:
        before = encode((arguments, keywords))
        result = _find(namespace, name)(*arguments, **keywords)
        after = encode((arguments, keywords))
        encode(result)
        return ("returned", result, (arguments, keywords) if after != before else None)
    except BaseException as error:
        return ("raised", type(error).__name__, str(error)[:500])


def _find(namespace, name):
    """Return the function; a method of a class `Solution` is found by its bare name too."""
    if name in namespace:
        return namespace[name]
    if "Solution" in namespace:
        return getattr(namespace["Solution"](), name)
    raise NameError(f"name {name!r} is not defined")


def _unit_tests(namespace, source):
    """Run the test cases of a module in the solution's own namespace; return the names of those that passed."""
    import unittest

    try:
        exec(compile(source, "tests.py", "exec"), namespace)
        passed = []
        cases = [value for value in namespace.values() if isinstance(value, type) and issubclass(value, unittest.TestCase)]
        for case in cases:
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(case):
                result = unittest.TestResult()
                test.run(result)
                if result.wasSuccessful() and result.testsRun and not result.skipped:
                    passed.append(f"{case.__name__}.{test._testMethodName}")
        return ("passed", passed)
    except BaseException as error:
        return ("raised", type(error).__name__, str(error)[:500])


def _put_on_strict_filter() -> None:
    program = bytes.fromhex(os.environ.pop("STRICT_FILTER", ""))
    if not program:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program, len(program))
    header = (len(program) // 8).to_bytes(8, sys.byteorder) + ctypes.addressof(instructions).to_bytes(8, sys.byteorder)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0):
        os._exit(111)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogatepass") as stream:  # noqa: PTH123 - pathlib is slow to import
        return stream.read()


if __name__ == "__main__":
    main()
