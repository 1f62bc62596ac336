"""Which sandbox is used, what a refusal says, and what can be plugged in."""

import asyncio
import os
import shutil
import time
import uuid

import pytest

from collab.sandbox import Ended, Limits, Program, Sandbox, SandboxError, SandboxResult, examine_sandboxes, load_sandbox
from collab.sandbox import selection as selection_module
from collab.sandbox.doctor import SandboxReport
from collab.sandbox.isolations import bubblewrap, landlock, namespaces
from collab.sandbox.process_sandbox import Isolation, ProcessSandbox, this_interpreter
from collab.sandbox.selection import PREFERENCE, Availability, probe
from simulators.errors import ConfigurationError
from tests.sandbox.test_hostile_programs import is_gone

QUICK = Limits(cpu_s=1, wall_s=5)


def test_the_report_lists_every_isolation_and_what_auto_takes():
    report = examine_sandboxes()
    assert [isolation.name for isolation in report.isolations] == list(PREFERENCE)
    assert all(isolation.detail for isolation in report.isolations)
    if report.chosen is not None:
        assert load_sandbox().name == report.chosen
        assert load_sandbox(report.chosen) is load_sandbox()


def test_advice():
    best = Availability("bubblewrap", True, "good")
    missing = Availability("bubblewrap", False, "not installed")
    assert SandboxReport((best,)).advice is None
    assert "apt-get install bubblewrap" in SandboxReport((missing,)).advice
    second = SandboxReport((missing, Availability("landlock", True, "fine")))
    assert second.chosen == "landlock"
    assert "landlock is in use" in second.advice


@pytest.fixture
def nothing_available(monkeypatch):
    def not_here(name, interpreter):
        return None, Availability(name, False, f"no {name}")

    monkeypatch.setattr(selection_module, "_tested", not_here)


def test_a_refusal_says_what_was_tried_and_how_to_get_one(nothing_available):
    with pytest.raises(ConfigurationError) as caught:
        load_sandbox()
    text = str(caught.value)
    assert "cannot be run safely here" in text
    for words in (
        "bubblewrap: no bubblewrap",
        "namespaces: no namespaces",
        "landlock: no landlock",
        "apt-get install bubblewrap",
    ):
        assert words in text
    assert "\n" not in text
    assert examine_sandboxes().chosen is None
    assert "cannot be run here" in examine_sandboxes().advice


def test_without_bubblewrap_the_next_one_is_taken(monkeypatch):
    monkeypatch.setattr(selection_module.shutil, "which", lambda name: None)
    selection_module._test.cache_clear()
    try:
        report = examine_sandboxes()
        assert report.isolations[0] == Availability("bubblewrap", False, "bwrap is not installed")
        if report.chosen is None:
            pytest.skip("no other isolation on this machine")
        assert load_sandbox().name in {"namespaces", "landlock"}
        assert load_sandbox().run_blocking(Program({"main.py": "print(1)"}), QUICK).stdout == "1\n"
    finally:
        selection_module._test.cache_clear()


def test_on_another_system_it_refuses(monkeypatch):
    monkeypatch.setattr(selection_module.sys, "platform", "darwin")
    selection_module._test.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match="needs Linux"):
            load_sandbox()
    finally:
        selection_module._test.cache_clear()


def bare(**details):
    """Return a sandbox that isolates nothing at all but for the filter and the limits."""
    settings = {
        "command": lambda limits: [],
        "interpreter": this_interpreter(),
        "scratch": None,
        "summary": "",
        "bounds_processes": False,
    }
    return ProcessSandbox(Isolation("bare", **settings | details))


def test_an_isolation_that_lets_the_probe_through_is_not_trusted():
    assert "outside the scratch folder" in probe(bare())


def test_an_isolation_that_cannot_be_set_up_is_not_trusted():
    assert "cannot start" in probe(bare(command=lambda limits: ["/nowhere/at/all"]))
    assert "could not be set up" in probe(bare(command=lambda limits: ["false"]))
    assert "could not be set up" in probe(bare(entry="raise RuntimeError"))


def test_a_failed_set_up_is_the_sandboxs_failure():
    with pytest.raises(SandboxError, match="sandbox bare could not be set up: RuntimeError: no such thing"):
        bare(entry="raise RuntimeError('no such thing')").run_blocking(Program({"main.py": "print(1)"}), QUICK)
    with pytest.raises(SandboxError, match="no/such"):
        bare(interpreter="/no/such/python").run_blocking(Program({"main.py": "print(1)"}), QUICK)


@pytest.mark.parametrize("which", ["bubblewarp", "none", ""])
def test_unknown_names(which):
    with pytest.raises(ConfigurationError, match="unknown sandbox"):
        load_sandbox(which)


class Mine:
    name = "mine"

    async def run(self, program: Program, limits: Limits) -> SandboxResult:
        return SandboxResult(Ended.EXITED, 0, "from far away", "")


def make_mine():
    return Mine()


def make_nonsense():
    return object()


async def test_a_sandbox_of_your_own():
    sandbox = load_sandbox(f"{__name__}:make_mine")
    assert isinstance(sandbox, Sandbox)
    assert (await sandbox.run(Program({}), Limits())).stdout == "from far away"


@pytest.mark.parametrize("which", ["nowhere:f", f"{__name__}:nothing", f"{__name__}:make_nonsense"])
def test_a_sandbox_of_your_own_that_is_none(which):
    with pytest.raises(ConfigurationError, match="sandbox"):
        load_sandbox(which)


@pytest.mark.parametrize("which", [{}, {"container": []}, {"container": "docker run"}, {"container": ["x"], "y": 1}])
def test_container_configurations_that_are_none(which):
    with pytest.raises(ConfigurationError, match="sandbox: expected"):
        load_sandbox(which)


def test_a_container_command_that_does_not_work():
    with pytest.raises(ConfigurationError, match="`false` cannot be used"):
        load_sandbox({"container": ["false"]})


@pytest.fixture
def container_command():
    """A container runtime for tests: bubblewrap, with the program as its first process and no help from outside."""
    if shutil.which("bwrap") is None or not examine_sandboxes().isolations[0].available:
        pytest.skip("needs bubblewrap to play the container runtime")
    command = [word for word in bubblewrap().command(Limits()) if word != "--die-with-parent"]
    return [command[0], "--as-pid-1", *command[1:]]


async def test_a_container(container_command):
    sandbox = load_sandbox({"container": container_command, "interpreter": this_interpreter()})
    assert sandbox.name == "container"
    result = await sandbox.run(
        Program({"main.py": "import sys\nprint(input())\nprint('bad', file=sys.stderr)"}, stdin="hello"), QUICK
    )
    assert (result.ended, result.exit_code, result.stdout, result.stderr) == (Ended.EXITED, 0, "hello\n", "bad\n")
    assert (await sandbox.run(Program({"main.py": "raise SystemExit(3)"}), QUICK)).exit_code == 3


async def test_a_container_ends_with_its_time_though_its_command_was_killed(container_command):
    sandbox = load_sandbox({"container": container_command, "interpreter": this_interpreter()})
    token = uuid.uuid4().hex
    source = "import os, sys\nos.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(600)', sys.argv[1]])"
    result = await sandbox.run(Program({"main.py": source}, arguments=(token,)), Limits(wall_s=0.2))
    assert result.ended is Ended.TIMEOUT
    for _ in range(5):
        if is_gone(token):
            return
        time.sleep(0.1)
    pytest.fail("the container outlived its limit")


@pytest.mark.parametrize("make", [bubblewrap, namespaces, landlock])
def test_another_interpreter_may_bring_its_packages(make):
    assert make("/usr/bin/python3").with_packages
    assert not make().with_packages


@pytest.mark.parametrize("make", [namespaces, landlock])
def test_an_odd_interpreter_does_not_show_the_whole_file_system(make, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    for interpreter in ("/bin/python3", str(tmp_path / "bin" / "python3")):
        shown = make(interpreter).readable
        assert "/" not in shown
        assert str(tmp_path) not in shown


def test_a_forked_child_runs_programs_in_threads_of_its_own():
    try:
        sandbox = load_sandbox()
    except ConfigurationError as error:
        pytest.skip(str(error))
    program = Program({"main.py": "print(1)"})
    assert asyncio.run(sandbox.run(program, QUICK)).stdout == "1\n"
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, asyncio.run(sandbox.run(program, QUICK)).stdout.encode())
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 10) == b"1\n"
    os.waitpid(child, 0)


@pytest.mark.parametrize("name", ["cpu_s", "wall_s", "memory_mb", "processes", "file_mb", "scratch_mb", "output_bytes"])
def test_limits_must_be_above_zero(name):
    with pytest.raises(ValueError, match=name):
        Limits(**{name: 0})
