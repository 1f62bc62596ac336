"""Models of a run: loaded once, talked to as each role asks, and no secret of theirs on disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recipes.configuration.group_schema import PolicyConfig
from recipes.running.models import Models
from simulators.chat_models.server import ChatServer
from simulators.errors import ConfigurationError
from simulators.journal import Journal
from tests.recipes.conftest import Collab


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    journal = Journal(tmp_path / "journal.jsonl")
    yield Models(journal)
    journal.close()


def config(**changes: Any) -> Any:
    return PolicyConfig(**changes)


def server_of(model: Any) -> ChatServer:
    while not isinstance(model, ChatServer):
        model = model._model
    return model


def test_a_served_model_is_talked_to_as_each_role_asks(models: Models) -> None:
    served = {"backend": "server", "model": "m", "urls": ["http://localhost:1/v1"]}
    user = models.load(config(**served))
    policy = models.load(config(**served, extensions=True, send_seed=False, deadline_s=5.0))
    assert models.load(config(**served)) is user and policy is not user
    plain, own = server_of(user)._options, server_of(policy)._options
    assert (plain.extensions, plain.send_seed) == (False, True)
    assert (own.extensions, own.send_seed, own.deadline_s) == (True, False, 5.0)


def test_one_model_in_this_process_has_one_set_of_settings(models: Models) -> None:
    scripted = {"backend": "scripted", "model": "recipes.dry_run:reply"}
    first = models.load(config(**scripted, max_batch_size=8))
    assert models.load(config(**scripted, max_batch_size=8)) is first
    with pytest.raises(ConfigurationError, match="max_batch_size=8 and max_batch_size=16 for it"):
        models.load(config(**scripted, max_batch_size=16))


@pytest.mark.parametrize("url", ["https://me:hunter2@api.example.com/v1", "https://api.example.com/v1?api-key=hunter2"])
def test_a_secret_in_a_url_is_neither_written_down_nor_printed(collab: Collab, url: str) -> None:
    served = ["policy=server", "policy.model=m", "policy.tokenizer=words", f"policy.urls=['{url}']"]
    ended = collab("build", "environment=errands", *served, "output_dir=out")
    assert ended.status == 1 and "policy.urls holds a URL with a password or a query" in ended.err
    assert "hunter2" not in ended.out + ended.err and not Path("out").exists()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["judge.kind=LLM", "judge.backend=scripted", "judge.model=recipes.dry_run:reply"], "unknown judge kind 'LLM'"),
        (["user.persona='in a hurry'"], "user.persona is for a user that a model plays; set user.kind=role_play"),
        (["user.urls=[http://localhost:1/v1]"], "user.urls is for a user that a model plays"),
    ],
)
def test_settings_of_roles_that_nobody_plays_are_refused(collab: Collab, overrides: list[str], said: str) -> None:
    ended = collab("build", "environment=errands", "policy=scripted", "output_dir=out", *overrides)
    assert ended.status == 1 and said in ended.err


def test_a_folder_with_a_foreign_configuration_is_refused(collab: Collab) -> None:
    for content in ("- a list\n", "{broken: [\n"):
        Path("out").mkdir(exist_ok=True)
        Path("out/config.yaml").write_text(content)
        Path("out/notes.txt").write_text("mine")
        ended = collab("build", "environment=errands", "policy=scripted", "output_dir=out")
        assert ended.status == 1 and "is not the configuration of a run" in ended.err


def test_a_users_entry_that_no_model_plays_takes_no_persona(collab: Collab) -> None:
    users = ["users.terse.persona='in a hurry'", "users.chatty.persona='talks a lot'"]
    ended = collab("evaluate", "environment=errands", "policy=scripted", "limit=1", "output_dir=out", *users)
    assert ended.status == 1 and "users.terse.persona is for a user that a model plays" in ended.err
