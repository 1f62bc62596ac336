"""The command line: help without torch, and for each mistake one sentence, the nearest name, and an exit status."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from recipes.command_line import RECIPES
from recipes.configuration.choices import conf_dir, register
from recipes.configuration.overrides import as_entry
from recipes.configuration.schema import SCHEMAS
from tests.conftest import REPOSITORY
from tests.recipes.conftest import Collab

HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "vllm", "wandb", "hydra", "pyarrow", "aiohttp", "numpy")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(collab: Collab, arguments: list[str]) -> None:
    ended = collab(*arguments)
    assert ended.status == 0
    for words, (_, what) in RECIPES.items():
        assert f"  {' '.join(words)} " in ended.out
        assert what in ended.out


def test_the_version_is_that_of_the_package(collab: Collab) -> None:
    ended = collab("--version")
    assert (ended.status, ended.out) == (0, f"collab {metadata.version('collab')}\n")


@pytest.mark.parametrize("words", sorted(RECIPES))
def test_every_command_explains_itself(collab: Collab, words: tuple[str, ...]) -> None:
    ended = collab(*words, "--help")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"usage: collab {' '.join(words)}")
    assert max(map(len, ended.out.splitlines())) <= 140
    if words == ("build",):
        assert "environment=abg_coqa|code_chat|" in ended.out and "policy.sampling.max_tokens, policy.sampling.temp" in ended.out
        assert ended.out.count("A chat model. `backend` is transformers") == 1


@pytest.mark.parametrize("group", ["train", "model"])
def test_a_group_of_commands_lists_them(collab: Collab, group: str) -> None:
    ended = collab(group, "--help")
    assert ended.status == 0
    shown = [line for line in ended.out.splitlines() if line.startswith("  ")]
    assert len(shown) == sum(words[0] == group for words in RECIPES) and all(line.startswith(f"  {group} ") for line in shown)


@pytest.mark.parametrize("arguments", [["--help"], ["build", "--help"], ["build", "--cfg", "job"]])
def test_help_may_be_cut_short(arguments: list[str]) -> None:
    """`collab --help | head`: the reader goes before everything is written."""
    command = [sys.executable, "-m", "recipes.command_line", *arguments]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 0


def test_help_and_the_packages_themselves_import_nothing_heavy() -> None:
    code = f"""
import sys
import collab, simulators
from recipes.command_line import main
main(["--help"])
print("HEAVY", sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_public_names_are_found() -> None:
    import collab
    import simulators

    for package in (collab, simulators):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert dir(package) == package.__all__
        with pytest.raises(AttributeError, match="no attribute 'nothing_of_the_kind'"):
            _ = package.nothing_of_the_kind  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["bild"], "collab build"),
        (["train"], "collab train sft"),
        (["train", "sfft", "data=x"], "collab train sft"),
        (["eval"], "collab evaluate"),
        (["model", "fetsch"], "collab model fetch"),
    ],
)
def test_an_unknown_command_names_the_nearest(collab: Collab, arguments: list[str], near: str) -> None:
    ended = collab(*arguments)
    assert ended.status == 2
    first = f"collab: there is no command {' '.join(arguments[:2])!r}; did you mean `{near}`?"
    assert ended.err.splitlines() == [first, "`collab --help` lists them"]
    assert "Traceback" not in ended.err


CONFIGURED = sorted(
    {module.removeprefix("recipes.") for module, _ in RECIPES.values()} & {path.stem for path in conf_dir().glob("*.yaml")}
)


@pytest.mark.parametrize("recipe", CONFIGURED)
def test_every_recipe_shows_its_configuration(collab: Collab, recipe: str) -> None:
    words = next(words for words, (module, _) in RECIPES.items() if module == f"recipes.{recipe}")
    ended = collab(*words, "--cfg", "job")
    assert (ended.status, ended.err) == (0, "")
    assert "output_dir" in OmegaConf.to_container(OmegaConf.create(ended.out))


def test_every_configuration_belongs_to_a_recipe() -> None:
    assert sorted(path.stem for path in conf_dir().glob("*.yaml")) == CONFIGURED


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["enviroment=errands"], "unknown configuration key 'enviroment' (did you mean 'environment'?)"),
        (["environment=errand"], "unknown environment 'errand' (did you mean 'errands'?); known are "),
        (["policy=vlm"], "unknown policy 'vlm' (did you mean 'vllm'?); known are scripted, server, transformers, vllm"),
        (["policy.sampling.temprature=1"], "unknown configuration key 'policy.sampling.temprature' (did you mean"),
        (["+policy.sampling.temprature=1"], "unknown configuration key 'policy.sampling.temprature' (did you mean"),
        (["limit=2", "+seeds=3"], "unknown configuration key 'seeds' (did you mean 'seed'?)"),
        (["seed=abc"], "seed: Value 'abc' of type 'str' could not be converted to Integer"),
        (["limit="], "limit: Value '' of type 'str' could not be converted to Integer"),
        (["policy.urls=3"], "policy.urls: Invalid value assigned: int is not a ListConfig"),
        (["candidates.plain.count=two"], "candidates.plain.count: Value 'two' of type 'str' could not be converted to Integer"),
        (["candidates.plain.cont=2"], "candidates.plain.cont: there is no such key (did you mean 'count'?)"),
        (["candidates.mine.cont=2"], "candidates.mine.cont: there is no such key (did you mean 'count'?)"),
        (["policy.sampling.stop=[a"], "policy.sampling.stop=[a cannot be read (no viable alternative at input '[a'); quote"),
        (["policy.model=org/na,me"], "policy.model=org/na,me cannot be read (several values); quote a value with "),
        (["policy.model=a/epoch=1"], "policy.model=a/epoch=1 cannot be read (mismatched input '=' expecting <EOF>); quote"),
        (["seed"], "'seed' is no override; write KEY=VALUE (did you mean 'seed'?)"),
        (
            ["~seed"],
            "'seed' cannot be taken out; only entries of environment.options, user.options, candidates, min_components, splits",
        ),
        (["~nothing"], "unknown configuration key 'nothing'"),
    ],
)
def test_a_wrong_override_is_refused_before_anything_is_loaded(collab: Collab, overrides: list[str], said: str) -> None:
    ended = collab("build", *overrides)
    assert ended.status == 2
    assert ended.err.startswith(f"collab: {said}")
    assert ended.err.count("\n") == 1
    assert ended.sentence


def test_an_unknown_flag_is_refused(collab: Collab) -> None:
    ended = collab("build", "--bogus")
    assert ended.status == 2
    assert "unrecognized arguments: --bogus" in ended.sentence


def test_a_value_that_must_be_given_is_asked_for(collab: Collab) -> None:
    ended = collab("train", "sft")
    assert (ended.status, ended.sentence) == (1, "collab: data is not set; add data=VALUE to the command")


def composed(collab: Collab, *arguments: str) -> object:
    ended = collab(*arguments, "--cfg", "job")
    assert (ended.status, ended.err) == (0, "")
    return OmegaConf.create(ended.out)


def test_own_entries_are_added_and_changed_by_name(collab: Collab) -> None:
    config = composed(
        collab,
        "evaluate",
        "policies.sft.adapter=runs/lr=1e-4/adapter",
        "policies.sft.prompt=none",
        "policies.base.prompt=proactive",
    )
    sft = config.policies.sft  # type: ignore[attr-defined]
    assert (sft.prompt, sft.adapter, sft.policy) == ("none", "runs/lr=1e-4/adapter", {})
    assert config.policies.base.prompt == "proactive"  # type: ignore[attr-defined]
    assert set(config.policies) == {"base", "proactive", "sft"}  # type: ignore[attr-defined]
    config = composed(collab, "build", "candidates=stems", "candidates.asking.count=9", "+candidates.mine.stop=['?']")
    assert config.candidates.asking.count == 9  # type: ignore[attr-defined]
    assert config.candidates.asking.include_stop is True  # type: ignore[attr-defined]
    assert (config.candidates.mine.count, config.candidates.mine.stop) == (1, ["?"])  # type: ignore[attr-defined]


def test_entries_can_be_taken_out(collab: Collab) -> None:
    config = composed(collab, "evaluate", "~policies.base")
    assert list(config.policies) == ["proactive"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        ("seed=3", "seed=3"),
        ("~policies.base", "~policies.base"),
        ("policies.a.prompt=none", "+policies={a: {prompt: none}}"),
        ("environment.options.level=5", "+environment.options={level: 5}"),
        ("policies.a.adapter=it's=1", "+policies={a: {adapter: 'it\\'s=1'}}"),
        ("policies={a: {prompt: none}}", "policies={a: {prompt: none}}"),
    ],
)
def test_how_entries_are_passed_on(given: str, passed_on: str) -> None:
    assert as_entry(given) == passed_on


@pytest.mark.parametrize("command", [["view"], ["view", "a", "b", "c"], ["replay"], ["replay", "--all"]])
def test_commands_without_a_configuration_say_how_they_are_called(collab: Collab, command: list[str]) -> None:
    ended = collab(*command)
    assert ended.status == 2
    assert ended.sentence.startswith(f"collab: usage: collab {command[0]} RUN")


@pytest.mark.parametrize("command", ["view", "replay"])
def test_a_folder_without_a_run_is_refused(collab: Collab, command: str) -> None:
    ended = collab(command, "nowhere")
    assert ended.status == 1
    assert ended.sentence.startswith("collab: ") and "nowhere" in ended.sentence


def test_a_model_that_cannot_be_fetched_is_one_sentence(collab: Collab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAB_CACHE", "/proc/nowhere")
    ended = collab("model", "fetch")
    assert ended.status == 1
    assert ended.sentence.startswith("collab: cannot write the embedded model to /proc/nowhere: ")


@pytest.mark.parametrize("recipe", sorted(SCHEMAS))
def test_every_value_of_a_recipe_can_be_set(recipe: str) -> None:
    """Hydra marks what comes from a frozen dataclass as read-only; then a documented key is refused on the command line."""
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        config = compose(recipe)

    def groups(node: Any) -> Iterator[Any]:
        yield node
        children = (node._get_node(key) for key in node) if isinstance(node, DictConfig) else ()
        for child in children:
            if isinstance(child, DictConfig) and not child._is_missing() and not child._is_none():
                yield from groups(child)

    assert [node._get_full_key(None) for node in groups(config) if OmegaConf.is_readonly(node)] == []
