"""What an honest program gets: its files, arguments, input, output, exit code, and a few processes."""

import asyncio
import sys
import threading

import pytest

from collab.sandbox.protocol import Ended, Limits, Program, SandboxError
from collab.sandbox.seccomp import filter_program
from collab.sandbox.selection import PREFERENCE, availability, load_sandbox

LIMITS = Limits(cpu_s=5, wall_s=20)


async def test_files_arguments_input_and_output(sandbox):
    program = Program(
        {
            "main.py": "import sys, other\nprint(sys.argv[1:], input(), other.x)\nsys.exit(3)",
            "other.py": "x = 'é'",
        },
        arguments=("a", "b c"),
        stdin="ünï\nrest",
    )
    result = await sandbox.run(program, LIMITS)
    assert (result.ended, result.exit_code, result.stdout) == (Ended.EXITED, 3, "['a', 'b c'] ünï é\n")
    assert not result.ok


async def test_the_program_is_main(sandbox):
    source = (
        "import pickle\nclass A: pass\nif __name__ == '__main__':\n    print(type(pickle.loads(pickle.dumps(A()))).__module__)"
    )
    assert (await sandbox.run(Program({"main.py": source}), LIMITS)).stdout == "__main__\n"


async def test_large_input(sandbox):
    program = Program({"main.py": "import sys\nprint(len(sys.stdin.read()))"}, stdin="x" * 3_000_000)
    assert (await sandbox.run(program, LIMITS)).stdout == "3000000\n"


async def test_an_exception_is_an_exit(sandbox):
    result = await sandbox.run(Program({"main.py": "1 / 0"}), LIMITS)
    assert (result.ended, result.exit_code) == (Ended.EXITED, 1)
    assert "ZeroDivisionError" in result.stderr


async def test_a_crash_is_a_kill(sandbox):
    result = await sandbox.run(Program({"main.py": "import os\nos.abort()"}), LIMITS)
    assert (result.ended, result.exit_code) == (Ended.KILLED, None)


async def test_the_scratch_folder_is_writable_and_home(sandbox):
    source = "import os, tempfile\nopen('a', 'w').write('x')\nprint(os.environ['HOME'] == os.getcwd() == tempfile.gettempdir())"
    assert (await sandbox.run(Program({"main.py": source}), LIMITS)).stdout == "True\n"


async def test_many_at_once(sandbox):
    programs = [Program({"main.py": f"print({number})"}) for number in range(12)]
    results = await asyncio.gather(*(sandbox.run(program, LIMITS) for program in programs))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(12)]


async def test_threads_are_allowed(sandbox):
    source = "import threading\nt = threading.Thread(target=print, args=('thread',))\nt.start(); t.join()"
    assert (await sandbox.run(Program({"main.py": source}), LIMITS)).stdout == "thread\n"


async def test_processes_are_allowed_where_they_can_be_numbered(sandbox):
    source = "import subprocess, sys\nprint(subprocess.run([sys.executable, '-S', '-c', 'print(7)'], capture_output=True).stdout)"
    result = await sandbox.run(Program({"main.py": source}), LIMITS)
    if sandbox.isolation.bounds_processes:
        assert result.stdout == "b'7\\n'\n"
    else:
        assert "PermissionError" in result.stderr


@pytest.mark.parametrize("name", PREFERENCE)
async def test_an_interpreter_of_a_virtual_environment_brings_its_packages(name):
    if not availability(name).available or sys.prefix == sys.base_prefix:
        pytest.skip(f"needs {name} and a virtual environment")
    program = Program({"main.py": "import pytest\nprint(pytest.__name__)"})
    assert "ModuleNotFoundError" in (await load_sandbox(name).run(program, LIMITS)).stderr
    assert (await load_sandbox(name, sys.executable).run(program, LIMITS)).stdout == "pytest\n"


async def test_a_cancelled_run_ends_at_once(sandbox):
    source = "import time\nprint('started', flush=True)\ntime.sleep(600)"
    run = asyncio.create_task(sandbox.run(Program({"main.py": source}), Limits(wall_s=600)))
    await asyncio.sleep(0.2)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    stop = threading.Event()
    stop.set()
    with pytest.raises(SandboxError, match="stopped"):
        sandbox.run_blocking(Program({"main.py": source}), Limits(wall_s=600), stop)


def test_filters_know_their_architectures():
    for machine in ("x86_64", "aarch64"):
        base, strict = filter_program(machine=machine), filter_program(strict=True, machine=machine)
        assert len(base) % 8 == len(strict) % 8 == 0
        assert len(strict) > len(base)
    with pytest.raises(NotImplementedError, match="riscv64"):
        filter_program(machine="riscv64")
