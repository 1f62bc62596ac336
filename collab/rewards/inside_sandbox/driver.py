"""The trusted side: holds the tests, calls the code under test in another process, and prints the verdict.

Its standard output is the channel of the verdict and is never inherited by the solution's process. Lines: `tests N`, then
`pass` or `fail REASON` for each test, or `broken REASON` when the tests themselves do not run. A program that is killed on the
way has printed the verdicts so far; the tests that are missing count as failed.
"""

# Sent as text: `values` stands beside this file only inside the sandbox, and type hints beyond the signatures cost start-up time.
# mypy: ignore-errors

import builtins
import os
import sys

from values import NotPlain, Opaque, decode, encode

MAX_STDOUT_BYTES = 4_000_000


class SolutionFailed(Exception):
    """The code under test raised something that is not a built-in exception, or its process is gone."""


class Solution:
    """The code under test, in a process of its own."""

    def __init__(self, prelude: str, solution: str) -> None:
        for name, text in (("prelude.py", prelude), ("solution.py", solution)):
            with open(name, "w", encoding="utf-8", errors="surrogatepass") as stream:  # noqa: PTH123
                stream.write(text)
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        self.process = spawn(["serve", "prelude.py", "solution.py"], to_read, from_write)
        os.close(to_read)
        os.close(from_write)
        self._replies = os.fdopen(self._from, "rb")
        self.names: list[str] = []

    def load(self) -> None:
        """Wait until the solution is loaded; raises what its module-level code raised."""
        _, names = self._receive()
        self.names = [name for name in names if isinstance(name, str)]

    def call(self, name: str, arguments: tuple, keywords: dict):
        """Return what the function returns, or raise what it raises."""
        _, result, changed = self._ask(("call", name, arguments, keywords))
        if changed is not None:
            _bring_up_to_date(arguments, keywords, changed)
        return result

    def unit_tests(self, source: str) -> list[str]:
        _, passed = self._ask(("unit tests", source))
        return list(passed)

    def _ask(self, request):
        data = encode(request).encode("utf-8", "surrogatepass")
        data = b"%d\n" % len(data) + data
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except OSError:
            raise SolutionFailed("its process is gone") from None
        return self._receive()

    def _receive(self):
        try:
            reply = decode(self._replies.read(int(self._replies.readline(20))).decode("utf-8", "surrogatepass"))
            kind, *details = reply
        except (ValueError, TypeError, NotPlain):
            raise SolutionFailed("its process is gone or answers nonsense") from None
        if kind == "raised":
            raise _exception(*details)
        return reply


def spawn(arguments: list[str], standard_input: int, standard_output: int) -> int:
    """Start the solution's side with these two descriptors and no others; return its process id."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    flags = ["-I", "-B"] + (["-S"] if sys.flags.no_site else [])
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    start = f"import sys; sys.path.insert(0, {here!r}); sys.argv.pop(0); import solution_server; solution_server.main()"
    actions = [
        (os.POSIX_SPAWN_DUP2, standard_input, 0),
        (os.POSIX_SPAWN_DUP2, standard_output, 1),
        (os.POSIX_SPAWN_DUP2, nothing, 2),
    ]
    command = [sys.executable, *flags, "-c", start, "solution_server.py", *arguments]
    process = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
    os.close(nothing)
    return process


def _exception(name: object, text: object) -> BaseException:
    known = getattr(builtins, str(name), None)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            return known(str(text))
        except TypeError:  # UnicodeDecodeError and its like take more
            pass
    return SolutionFailed(f"{name}: {text}")


def _bring_up_to_date(arguments, keywords, changed) -> None:
    """Give the caller's lists, dicts and sets the contents that the function left in its copies."""
    after_arguments, after_keywords = changed
    pairs = list(zip(arguments, after_arguments, strict=True)) + [(keywords[key], after_keywords[key]) for key in keywords]
    for ours, after in pairs:
        if isinstance(ours, list) and isinstance(after, list):
            ours[:] = after
        elif isinstance(ours, dict | set) and type(ours) is type(after):
            ours.clear()
            ours.update(after)


def say(line: str) -> None:
    """Print one line of the verdict at once."""
    os.write(1, (line.replace("\n", " ")[:300] + "\n").encode("utf-8", "replace"))


def judge(test) -> None:
    """Run one test (a function without arguments) and print its verdict."""
    try:
        test()
    except BaseException as error:
        say(f"fail {type(error).__name__}: {error}")
    else:
        say("pass")


def run_check(spec: dict, solution: Solution) -> None:
    """HumanEval: `check(candidate)` from the test module, with the task's own helpers around it."""
    namespace: dict[str, object] = {"__name__": "tests"}
    exec(compile(spec["prelude"], "prelude.py", "exec"), namespace)
    helpers = set(namespace)
    say("tests 1")

    def test() -> None:
        solution.load()
        for name in solution.names:
            if (name not in helpers or name == spec["entry_point"]) and not hasattr(builtins, name):
                namespace[name] = _proxy(solution, name)
        exec(compile(spec["source"], "tests.py", "exec"), namespace)
        namespace["check"](_proxy(solution, spec["entry_point"]))

    judge(test)


def run_cases(spec: dict, solution: Solution) -> None:
    """Input and output pairs for one function."""
    say(f"tests {len(spec['cases'])}")
    failure: BaseException | None = None
    try:
        solution.load()
    except BaseException as error:
        failure = error

    def test(arguments: list, expected: object) -> None:
        if failure is not None:
            raise failure
        result = solution.call(spec["entry_point"], tuple(arguments), {})
        if not same(result, expected):
            raise AssertionError(f"got {result!r}"[:200])

    for arguments, expected in spec["cases"]:
        judge(lambda arguments=arguments, expected=expected: test(arguments, expected))


def run_scripts(spec: dict) -> None:
    """Input and output pairs for a whole program that reads standard input; one process for each case."""
    say(f"tests {len(spec['cases'])}")
    for given, expected in spec["cases"]:
        judge(lambda given=given, expected=expected: _script(spec["solution"], given, expected))


def _script(solution: str, given: str, expected: str) -> None:
    for name, text in (("solution.py", solution), ("input.txt", given)):
        with open(name, "w", encoding="utf-8", errors="surrogatepass") as stream:  # noqa: PTH123
            stream.write(text)
    standard_input = os.open("input.txt", os.O_RDONLY)
    reading, writing = os.pipe()
    process = spawn(["script", "solution.py"], standard_input, writing)
    os.close(writing)
    os.close(standard_input)
    output = b""
    while len(output) <= MAX_STDOUT_BYTES and (part := os.read(reading, 1 << 16)):
        output += part
    os.close(reading)
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise AssertionError(f"the program ended with {os.waitstatus_to_exitcode(status)}")
    if not same_output(output.decode("utf-8", "replace"), expected):
        raise AssertionError(f"printed {output[:100]!r}")


def run_unit_tests(spec: dict, solution: Solution) -> None:
    """`unittest` cases, which reach into the solution's interpreter (patches, mocks) and so must run there."""
    say(f"tests {len(spec['names'])}")
    passed: list[str] = []
    try:
        solution.load()
        passed = solution.unit_tests(spec["source"])
    except BaseException as error:
        reason = f"fail {type(error).__name__}: {error}"
    else:
        reason = "fail"
    for name in spec["names"]:
        say("pass" if name in passed else reason)


def same(result: object, expected: object) -> bool:
    """Compare a result with its expected value as JSON would: tuples are lists, floats may differ in the last digits."""
    if isinstance(result, Opaque):
        return False
    if isinstance(result, list | tuple) and isinstance(expected, list | tuple):
        return len(result) == len(expected) and all(map(same, result, expected))
    if isinstance(result, dict) and isinstance(expected, dict):
        return result.keys() == expected.keys() and all(same(result[key], expected[key]) for key in expected)
    if _is_number(result) and _is_number(expected) and float in (type(result), type(expected)):
        return result == expected or abs(result - expected) <= 1e-9 * max(abs(result), abs(expected))
    return type(result) is type(expected) and result == expected


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same_output(printed: str, expected: str) -> bool:
    """Compare what a program printed with what it should, line by line; white space at the ends of lines does not count."""

    def lines(text: str) -> list[str]:
        return [line.strip() for line in text.strip().splitlines()]

    if lines(printed) == lines(expected):
        return True
    ours, theirs = printed.split(), expected.split()
    return len(ours) == len(theirs) and all(map(_same_number, ours, theirs))


def _same_number(first: str, second: str) -> bool:
    try:
        return first == second or abs(float(first) - float(second)) <= 1e-9 * max(1.0, abs(float(second)))
    except ValueError:
        return False


def _proxy(solution: Solution, name: str):
    def function(*arguments, **keywords):
        return solution.call(name, arguments, keywords)

    function.__name__ = name
    return function


def main() -> None:
    """Read what to do from the standard input, where the solution cannot read it again."""
    spec = decode(sys.stdin.read())
    assert isinstance(spec, dict)
    try:
        for part in ("prelude", "source"):
            compile(spec[part], part, "exec")
    except (SyntaxError, ValueError) as error:
        say(f"broken {type(error).__name__}: {error}")
        return
    kind = spec["kind"]
    if kind == "scripts":
        run_scripts(spec)
    else:
        run = {"check": run_check, "cases": run_cases, "unittest": run_unit_tests}[kind]
        run(spec, Solution(spec["prelude"], spec["solution"]))


main()
