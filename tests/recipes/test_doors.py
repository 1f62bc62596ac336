"""Code of one's own by name: an environment, a user, a reward, an online method, each one module in the current folder."""

import json
from pathlib import Path

import pytest

from collab.environments.registry import DOMAINS
from collab.sandbox.selection import load_sandbox
from simulators.errors import ConfigurationError
from simulators.object_reference import built_in_names_only
from simulators.tree_file import read_trees
from tests.recipes.conftest import Collab

DOOR = """
from dataclasses import dataclass, replace

from collab.environments.registry import load_domain
from simulators.users.protocol import UserTurn


def domain(turns: int = 2):
    return replace(load_domain("errands"), name="mine", max_turns=turns)


@dataclass(frozen=True)
class Terse:
    words: str
    model: object

    async def next_turn(self, conversation, seed):
        said = sum(message.role == "user" for message in conversation)
        return UserTurn(f"{self.words} {said}", ends=said > 1)


def terse(task, resources, words: str = "Well"):
    return Terse(words, resources.user_model)


@dataclass(frozen=True)
class Short:
    most: int
    name: str = "short"
    source: str = "our own"
    value_range: tuple[float, float] = (0.0, 1.0)

    async def score(self, conversation, task):
        return float(len(conversation[-1].content.split()) <= self.most)


def short(resources, most: int = 5):
    return Short(most)


def nobody(task, resources):
    return "nobody"


def nothing(resources):
    return "nothing"
"""
DRY = ["policy=scripted", "limit=2", "max_turns=2", "output_dir=run"]


@pytest.fixture(autouse=True)
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "door.py").write_text(DOOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "door", raising=False)


def first_tree() -> object:
    return next(iter(read_trees(Path("run"))))


@pytest.mark.parametrize("name", sorted(DOMAINS))
def test_every_registered_domain_is_a_choice(collab: Collab, name: str) -> None:
    ended = collab("build", f"environment={name}", "--cfg", "job")
    assert ended.status == 0, ended.err
    assert f"environment:\n  name: {name}\n" in ended.out


def test_an_environment_of_ones_own(collab: Collab) -> None:
    ended = collab(
        "build", "environment=door:domain", "environment.options.turns=1", "policy=scripted", "limit=2", "output_dir=run"
    )
    assert ended.status == 0, ended.err
    assert first_tree().metadata["environment"] == "mine"
    assert all(sum(node.message.role == "assistant" for node in tree.nodes) for tree in read_trees(Path("run")))


def test_a_user_of_ones_own_with_options(collab: Collab) -> None:
    ended = collab("build", "user=door:terse", "user.options.words=Hm", *DRY)
    assert ended.status == 0, ended.err
    assert first_tree().nodes[0].message.content == "Hm 0"
    played = ["user.kind=door:terse", "user.backend=scripted", "user.model=recipes.dry_run:reply"]
    assert collab("evaluate", *played, "policy=scripted", "limit=1", "output_dir=other").status == 0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["user=door:terse", "user.options.word=Hm"],
            "user door:terse has no option 'word' (did you mean 'words'?); it has words",
        ),
        (["user=door:terse", "user.options.words=[1]"], "user door:terse: option words is [1]; input should be a valid string"),
        (["user=door:nobody"], "user door:nobody is no user: its function returned a str"),
        (["user.options.words=Hm"], "user scripted has no options, and words is set"),
        (["user=door:nowhere"], "user kind 'door:nowhere' cannot be loaded: "),
        (["user=scriptd"], "unknown user 'scriptd' (did you mean 'scripted'?); known are role_play, scripted"),
        (
            ["reward.terms=[{name: acuracy}]"],
            "unknown reward component 'acuracy' (did you mean 'accuracy'?); known are accuracy, ",
        ),
        (["reward.terms=[{name: door:short, arguments: {mst: 1}}]"], "reward component door:short has no argument 'mst'"),
        (
            ["reward.terms=[{name: door:short, arguments: {most: lots}}]"],
            "reward component door:short: argument most is 'lots'; ",
        ),
        (["reward.terms=[{name: door:nothing}]"], "reward component door:nothing is none: its function returned a str"),
        (
            ["reward.terms=[{name: accuracy, arguments: {most: 1}}]"],
            "reward component accuracy is that of errands, which takes no",
        ),
        (
            ["reward.terms=[{name: token_cost, arguments: {token_penalty: much}}]"],
            "reward component token_cost: option token_pen",
        ),
        (["reward.terms=[{name: interactivity}]"], "reward component interactivity needs a judge; configure a judge model"),
        (["reward.terms=[{name: accuracy}, {name: accuracy}]"], "reward: component names must differ"),
        (["reward.terms=[{name: accuracy, weight: inf}]"], "reward.terms: the weight of accuracy is inf"),
        (["reward.terms=[{weight: 1.0}]"], "reward.terms[0].name is not set"),
    ],
)
def test_what_a_door_refuses(collab: Collab, overrides: list[str], said: str) -> None:
    ended = collab("build", *DRY, *overrides)
    assert ended.status in (1, 2)
    assert ended.sentence.removeprefix("collab: ").startswith(said), ended.err


@pytest.mark.parametrize("command", ["build", "evaluate", "ablation"])
def test_a_reward_term_by_term_on_every_command_that_scores(collab: Collab, command: str) -> None:
    terms = "reward.terms=[{name: accuracy}, {name: door:short, weight: 0.5, arguments: {most: 6}}, {name: bleu, weight: 0.0}]"
    task = ["environment=math_chat", "policy=scripted", "limit=1", "output_dir=run"]
    terms = terms.replace("bleu", "clarity")
    judge = ["judge=llm", "judge.backend=scripted", "judge.model=recipes.dry_run:reply"]
    ended = collab(command, *task, *judge, terms)
    assert ended.status == 0, ended.err
    place = Path("run/base") if command == "evaluate" else Path("run")
    text = (place / "trees.jsonl").read_text()
    for name in ("accuracy", "short", "clarity"):
        assert f'"{name}":' in text
    assert '"token_cost":' not in text
    if command == "build":
        assert next(iter(read_trees(place))).metadata["reward"] == {"accuracy": 1.0, "short": 0.5, "clarity": 0.0}
        refused = collab(command, *task, *judge, terms.replace("0.5", "0.75"))
        assert refused.status == 1 and "holds a run with reward.terms=" in refused.sentence


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "environment: {name: 'door:domain', options: {}}",
            "environment 'door:domain' is code that a stored configuration names",
        ),
        ("user: {kind: 'door:terse'}", "user kind 'door:terse' is code that a stored configuration names"),
        ("reward: {terms: [{name: 'door:short'}]}", "reward component 'door:short' is code that a stored configuration names"),
        ("tasks: ${oc.env:HOME}", "holds an interpolation (${...}), which is not resolved unasked"),
    ],
)
def test_a_run_of_somebody_else_runs_none_of_its_code(collab: Collab, line: str, said: str) -> None:
    assert collab("build", *DRY).status == 0
    text = Path("run/config.yaml").read_text()
    key = line.partition(":")[0]
    kept = []
    skipping = False
    for each in text.splitlines():
        skipping = each.startswith(f"{key}:") or (skipping and each.startswith((" ", "-")))
        kept += [] if skipping else [each]
    Path("run/config.yaml").write_text("\n".join([*kept, line]) + "\n")
    Path("door.py").write_text("import pathlib; pathlib.Path('executed').touch()\n" + DOOR)
    ended = collab("replay", "run")
    assert ended.status == 1
    assert said in ended.sentence
    assert not Path("executed").exists()
    if "door" in line:
        collab("replay", "run", "--trust")
        assert Path("executed").exists()


@pytest.mark.parametrize("which", [("door:domain",), ({"container": ["touch", "executed"]},), ("auto", "./door")])
def test_a_run_of_somebody_else_chooses_no_sandbox_of_its_own(which: tuple[object, ...]) -> None:
    with built_in_names_only(), pytest.raises(ConfigurationError, match="is code that a stored configuration names"):
        load_sandbox(*which)  # type: ignore[arg-type]
    assert not Path("executed").exists()


def test_a_replay_with_trust_runs_what_its_owner_wrote(collab: Collab) -> None:
    assert collab("build", "environment=door:domain", "user=door:terse", *DRY).status == 0
    assert "--trust" in collab("replay", "run").sentence
    ended = collab("replay", "run", "--trust")
    assert ended.status == 0, ended
    assert "every tree is as recorded" in ended.out


METHOD = '''
from dataclasses import dataclass, field

from collab.training.grpo import GRPO
from collab.training.online_settings import GRPOSettings, RolloutSettings


@dataclass
class Mine:
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    size: int = 2


class Half:
    """GRPO in groups of `size`."""

    name = "half"
    Settings = Mine

    @staticmethod
    def trainer(run, settings):
        return GRPO.trainer(run, GRPOSettings(rollout=settings.rollout, group_size=settings.size))


class Nameless:
    Settings = Mine
'''


def test_a_method_of_ones_own_with_typed_settings(collab: Collab, tmp_path: Path, tiny_model_folder: Path) -> None:
    (tmp_path / "my_method.py").write_text(METHOD)
    sizes = ["optimization.batch_size=4", "optimization.max_steps=1", "limit=4", "output_dir=run", "method.rollout.max_tokens=4"]
    ended = collab("train", "online", "method=my_method:Half", "method.size=4", f"model={tiny_model_folder}", *sizes)
    assert ended.status == 0, ended.err
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert {line["stage"] for line in lines} == {"half"}
    config = Path("run/config.yaml").read_text()
    assert "algorithm: my_method:Half" in config and "  size: 4\n" in config
    for overrides, said in (
        (["method=my_method:Half", "method.sise=4"], "unknown configuration key 'method.sise' (did you mean 'method.size'?)"),
        (["method=my_method:Half", "method.size=x"], "method.size: Value 'x' of type 'str' could not be converted to Integer"),
        (["method=my_method:Nameless"], "method 'my_method:Nameless' has no trainer; see collab.training.online_method"),
        (["method=my_method:Nobody"], "method 'my_method:Nobody' cannot be loaded"),
        (["method=grop"], "unknown method 'grop' (did you mean 'grpo'?); known are grpo, online_dpo, ppo"),
        (["algorithm=ppo", "model=x"], "method has not the settings of ppo"),
    ):
        refused = collab("train", "online", *overrides, "output_dir=other")
        assert refused.status in (1, 2) and said in refused.sentence, refused.err
