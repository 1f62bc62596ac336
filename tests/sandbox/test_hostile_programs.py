"""Programs that attack: each is contained, the run goes on, and what comes back says how it ended."""

import os
import time
import uuid
from pathlib import Path

import pytest

from collab.sandbox.protocol import Ended, Limits, Program

LIMITS = Limits(cpu_s=1, wall_s=2, memory_mb=192, processes=16, file_mb=8, scratch_mb=16, output_bytes=10_000)


def run(sandbox, source, limits=LIMITS, arguments=()):
    return sandbox.run_blocking(Program({"main.py": source}, arguments=tuple(arguments)), limits)


def processes_with(token: str) -> list[str]:
    """Return the processes of this machine that carry the token on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if token in (entry / "cmdline").read_text():
                found.append(entry.name)
        except OSError:
            continue
    return found


def is_gone(token: str) -> bool:
    """True when no process carries the token; the kernel gets a moment to bury the dead."""
    for _ in range(50):
        if not processes_with(token):
            return True
        time.sleep(0.02)
    return False


def test_fork_bomb(sandbox):
    source = """
import os, time
try:
    while True:
        os.fork()
except OSError:
    time.sleep(60)
"""
    before = len(list(Path("/proc").glob("[0-9]*")))
    result = run(sandbox, source)
    assert result.ended in {Ended.TIMEOUT, Ended.KILLED, Ended.MEMORY}
    assert len(list(Path("/proc").glob("[0-9]*"))) < before + 100
    assert run(sandbox, "print('next')").stdout == "next\n"


def test_fork_bomb_never_exceeds_the_limit(sandbox):
    source = """
import os, time
count = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except OSError:
    pass
print(count, flush=True)
os._exit(0)
"""
    result = run(sandbox, source)
    assert int(result.stdout) < LIMITS.processes


def test_memory_bomb(sandbox):
    result = run(sandbox, "hoard = []\nwhile True: hoard.append(bytearray(10_000_000))")
    assert not result.ok
    assert "MemoryError" in result.stderr or result.ended in {Ended.KILLED, Ended.MEMORY}


def test_memory_bomb_of_many_processes(sandbox):
    source = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        hoard = bytearray(60_000_000)
        for position in range(0, len(hoard), 4096):
            hoard[position] = 1
        time.sleep(60)
time.sleep(60)
"""
    result = run(sandbox, source, Limits(cpu_s=5, wall_s=10, memory_mb=192, processes=16))
    assert result.ended is Ended.MEMORY or "PermissionError" in result.stderr


def test_endless_print(sandbox):
    result = run(sandbox, "while True: print('x' * 1000)")
    assert result.ended is Ended.OUTPUT
    assert len(result.stdout) <= LIMITS.output_bytes


def test_endless_print_to_stderr_and_a_closed_stdout(sandbox):
    result = run(sandbox, "import os\nos.close(1)\nwhile True: os.write(2, b'x' * 1000)")
    assert result.ended is Ended.OUTPUT


def test_sleep(sandbox):
    result = run(sandbox, "import time\ntime.sleep(600)", Limits(wall_s=0.3))
    assert result.ended is Ended.TIMEOUT
    assert 0.3 <= result.wall_s < 10


def test_sleep_behind_closed_pipes(sandbox):
    result = run(sandbox, "import os, time\nos.close(1); os.close(2)\ntime.sleep(600)", Limits(wall_s=0.3))
    assert result.ended is Ended.TIMEOUT


def test_busy_loop_ends_by_its_cpu_time(sandbox):
    result = run(sandbox, "while True: pass", Limits(cpu_s=1, wall_s=60))
    assert result.ended is Ended.KILLED


def test_busy_loop_that_ignores_the_first_signal(sandbox):
    source = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert run(sandbox, source, Limits(cpu_s=1, wall_s=60)).ended is Ended.KILLED


def test_reading_files_outside_the_scratch(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    for folder in (tmp_path, *tmp_path.parents):  # so that only the sandbox can be what stops it
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(0o755)
    source = """
import os, sys
paths = [sys.argv[1], "/etc/shadow", "/etc/passwd", "/proc/1/environ", "/proc/self/environ", "/root/.ssh/id_rsa",
         "../../" * 9 + sys.argv[1], "/proc/1/root" + sys.argv[1], "/proc/self/root" + sys.argv[1]]
for path in paths:
    for how in ("r", "w"):
        try:
            print(path, open(path, how).read())
        except OSError:
            pass
os.symlink(sys.argv[1], "link")
try:
    print(open("link").read())
except OSError:
    pass
"""
    result = run(sandbox, source, arguments=[str(secret)])
    assert (result.ended, result.stdout, result.stderr) == (Ended.EXITED, "", "")
    assert secret.read_text() == "the secret"


def test_nothing_of_the_environment_is_inside(sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    result = run(sandbox, "import os\nprint(sorted(os.environ))")
    assert "OPENAI_API_KEY" not in result.stdout
    assert "sk-secret" not in result.stdout


def test_opening_a_socket(sandbox):
    source = """
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            socket.socket(family, kind)
            print("opened", family, kind)
        except OSError:
            pass
try:
    local = socket.socket(socket.AF_UNIX)
    local.connect("\\0/tmp/.X11-unix/X0")
    print("connected")
except OSError:
    pass
"""
    result = run(sandbox, source)
    assert (result.ended, result.stdout, result.stderr) == (Ended.EXITED, "", "")


def test_killing_the_parent(sandbox):
    source = """
import os, signal
for target in (os.getppid(), 1, -1, 0):
    try:
        os.kill(target, signal.SIGKILL)
    except OSError:
        pass
"""
    result = run(sandbox, source)
    assert result.ended in {Ended.KILLED, Ended.EXITED}  # itself at most: this process is still here to say so
    assert run(sandbox, "print('next')").stdout == "next\n"


def test_killing_every_process_it_can_name(sandbox):
    source = f"import os\nfor pid in [*range(2, 3000), {os.getpid()}]:\n    try: os.kill(pid, 9)\n    except OSError: pass"
    run(sandbox, source)
    assert run(sandbox, "print('next')").stdout == "next\n"


def test_writing_the_result_channel(sandbox):
    source = """
import os
for descriptor in range(3, 200):
    try:
        os.write(descriptor, b"ready")
        print("wrote to", descriptor)
    except OSError:
        pass
import glob
for path in glob.glob("/proc/*/fd/*") + glob.glob("/dev/fd/*"):
    try:
        open(path, "w").write("ready")
        print("wrote to", path)
    except OSError:
        pass
"""
    result = run(sandbox, source)
    assert "wrote to" not in result.stdout
    assert result.ended is Ended.EXITED


def test_exhausting_the_disk(sandbox):
    source = """
import os
for number in range(1000):
    with open(str(number), "wb") as stream:
        for _ in range(7):
            stream.write(os.urandom(1 << 20))
        stream.flush()
print("wrote it all")
"""
    result = run(sandbox, source, Limits(cpu_s=20, wall_s=30, file_mb=8, scratch_mb=16))
    assert "wrote it all" not in result.stdout
    assert result.ended is Ended.DISK or "No space left" in result.stderr


def test_one_file_that_grows_for_ever(sandbox):
    result = run(sandbox, "with open('big', 'wb') as stream:\n    while True: stream.write(bytes(1 << 20))")
    assert not result.ok
    assert "File too large" in result.stderr or result.ended is not Ended.EXITED


def test_memory_outside_the_limits(sandbox):
    source = """
import os
try:
    print("memory file", os.memfd_create("x"))
except OSError:
    pass
for folder in ("/dev/shm", "/tmp", "/dev", "/", "/usr", "/var/tmp", "/run"):
    try:
        open(folder + "/collab-was-here", "w").write("x")
        print("wrote to", folder)
    except OSError:
        pass
"""
    assert run(sandbox, source).stdout == ""


def test_daemonising(sandbox):
    token = uuid.uuid4().hex
    source = """
import os, sys
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in range(3):
                os.close(descriptor)
            os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", sys.argv[1]])
        os._exit(0)
    os.wait()
except OSError:
    pass
print("bye")
"""
    result = run(sandbox, source, arguments=[token])
    assert result.stdout == "bye\n"
    assert is_gone(token)


def test_a_daemon_that_keeps_the_pipes(sandbox):
    token = uuid.uuid4().hex
    source = """
import os, sys
try:
    if os.fork() == 0:
        os.setsid()
        os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", sys.argv[1]])
except OSError:
    pass
os._exit(0)
"""
    assert run(sandbox, source, Limits(wall_s=30), [token]).wall_s < 10
    assert is_gone(token)


def test_new_namespaces_and_tracing(sandbox):
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name, arguments in {
    "unshare": (0x10000000,), "ptrace": (16, os.getppid(), 0, 0), "mount": (b"tmpfs", b"/scratch", b"tmpfs", 0, 0),
    "chroot": (b"/scratch",), "setns": (0, 0), "setuid": (12345,), "personality": (0x0040000,),
}.items():
    if getattr(libc, name)(*arguments) == 0:
        print("allowed", name)
"""
    result = run(sandbox, source)
    assert (result.stdout, result.stderr, result.ended) == ("", "", Ended.EXITED)


def test_the_filter_cannot_be_passed_by_another_instruction_set(sandbox):
    source = """
import ctypes, mmap
code = bytes.fromhex("b829000000" "bb02000000" "cd80" "c3") + bytes(8)   # 32-bit int 0x80, a different call table
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("survived")
"""
    if os.uname().machine != "x86_64":
        pytest.skip("x86_64 only")
    result = run(sandbox, source)
    assert "survived" not in result.stdout


def test_raising_its_own_limits(sandbox):
    source = """
import resource
for which in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
    try:
        resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("raised", which)
    except (OSError, ValueError):
        pass
"""
    assert run(sandbox, source).stdout == ""


def test_one_program_leaves_nothing_for_the_next(sandbox):
    run(sandbox, "open('note', 'w').write('psst')\nimport os\nopen(os.environ['HOME'] + '/note2', 'w').write('psst')")
    assert run(sandbox, "import os\nprint(sorted(os.listdir('.')))").stdout == "['main.py']\n"
