"""The same sandboxes for a user who is not root: run as nobody, where these tests run as root."""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = 65534


def as_nobody(arguments, **options):
    """Run an interpreter that nobody may use, with this repository and our packages on its path."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), sysconfig.get_path("purelib")])
    identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    for interpreter in (os.path.realpath(sys.executable), f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            trial = [interpreter, "-c", "import collab.sandbox"]
            subprocess.run(trial, check=True, capture_output=True, cwd="/", env=environment, **identity)
        except (OSError, subprocess.CalledProcessError):
            continue
        return subprocess.run(
            [interpreter, *arguments],
            capture_output=True,
            text=True,
            cwd="/",
            env=environment | options.pop("env", {}),
            **identity,
            **options,
        )
    pytest.skip("no interpreter of this version that an unprivileged user may run, or they cannot read the repository")


@pytest.fixture(autouse=True)
def _root():
    if os.geteuid() != 0:
        pytest.skip("these tests are run unprivileged already")


SCRIPT = """
from collab.sandbox import Limits, Program, examine_sandboxes, load_sandbox
ATTACK = '''
import os, socket
for path in ("/etc/passwd", "/proc/1/status"):
    try: print("read", open(path).read()[:10])
    except OSError: pass
try: print("socket", socket.socket())
except OSError: pass
count = 0
try:
    for _ in range(100):
        if os.fork() == 0: os.execv("/bin/sleep", ["sleep", "60"])
        count += 1
except OSError: pass
print(count < 16, flush=True)
os._exit(0)
'''
for isolation in examine_sandboxes().isolations:
    if isolation.available:
        sandbox = load_sandbox(isolation.name)
        result = sandbox.run_blocking(Program({"main.py": ATTACK}), Limits(cpu_s=2, wall_s=10, processes=16))
        print(isolation.name, repr(result.stdout), result.stderr)
    else:
        print(isolation.name, "unavailable:", isolation.detail)
"""


def test_attacks_are_contained_for_an_unprivileged_user():
    done = as_nobody(["-c", SCRIPT], timeout=120)
    lines = [line for line in done.stdout.splitlines() if line]
    assert done.returncode == 0, done.stderr
    assert len(lines) == 3
    for line in lines:
        assert line.endswith("'True\\n' ") or "unavailable:" in line, line


@pytest.fixture
def folder_of_nobody():
    """A temporary folder that nobody owns; pytest's own is private to root."""
    with tempfile.TemporaryDirectory(prefix="collab-nobody-", ignore_cleanup_errors=True) as folder:
        os.chown(folder, NOBODY, NOBODY)
        yield Path(folder)


@pytest.mark.slow
def test_every_hostile_program_for_an_unprivileged_user(folder_of_nobody):
    files = [str(REPOSITORY / "tests/sandbox" / name) for name in ("test_hostile_programs.py", "test_programs.py")]
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder_of_nobody / 'base'}", f"--rootdir={REPOSITORY}"]
    options += ["-c", str(REPOSITORY / "pyproject.toml")]
    home = {"HOME": str(folder_of_nobody), "TMPDIR": str(folder_of_nobody)}
    done = as_nobody(["-m", "pytest", *options, *files], env=home, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "passed" in done.stdout
