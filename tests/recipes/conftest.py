"""The `collab` command inside the test process, so that a test need not import the libraries anew."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from recipes.command_line import main
from tests.recipes.threaded_server import assistant_reply, running
from tests.simulators.fault_server import FaultServer


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The last line on stderr: the one sentence that says what is wrong."""
        assert "Traceback" not in self.err
        assert "HYDRA_FULL_ERROR" not in self.err
        return self.err.strip().splitlines()[-1]


Collab = Callable[..., Ended]


@pytest.fixture
def collab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Collab:
    """Runs a command in an empty folder: `collab("build", "limit=3")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    for name in ("TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS", "TRL_EXPERIMENTAL_SILENCE"):
        monkeypatch.setenv(name, "true" if "PROGRESS" in name else "false")  # set by the command; put back at the end

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        try:
            main([str(argument) for argument in arguments])
            status = 0
        except SystemExit as exit_:
            status = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
        written = capsys.readouterr()
        return Ended(status, written.out, written.err)

    return run


@pytest.fixture
def chat_server() -> Iterator[FaultServer]:
    """A chat server whose replies depend on what is asked, seed included, and on nothing else."""
    server = FaultServer()
    server.reply = assistant_reply
    with running(server):
        yield server


@pytest.fixture(scope="session")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty small problems in GSM8K's format."""
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    with path.open("w") as stream:
        for n in range(20):
            question = f"Ada has {n + 3} pens. Ben gives her {n % 4 + 1} more. How many pens has she now?"
            stream.write(
                json.dumps({"question": question, "answer": f"She has {n + 3} + {n % 4 + 1}.\n#### {n + n % 4 + 4}"}) + "\n"
            )
    return path


@pytest.fixture
def served(chat_server: FaultServer) -> list[str]:
    """The overrides that make the chat server the policy."""
    return [
        "policy=server",
        "policy.model=served",
        f"policy.urls=[{chat_server.url}]",
        "policy.tokenizer=words",
        "policy.deadline_s=60",
    ]
