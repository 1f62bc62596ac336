"""The trainer that all online methods share: TRL's GRPOTrainer, fed with whole conversations.

A subclass says how a batch of episodes becomes a loss (`_learn_from`). This class plays the conversations, hands their exact
tokens to TRL (which computes log-probabilities and the reference's), leaves out what failed, keeps a step in which everything
failed from moving the policy, logs, and saves what an exact resume needs.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from collab.environments.domain import Environment
from collab.training.credit import Advantages, TurnValues, count_groups
from collab.training.episode import Episode, EpisodeStart
from collab.training.episode_player import EpisodePlayer
from collab.training.event_loop import TrainingThread
from collab.training.online_settings import RolloutSettings
from collab.training.rollout import Rollout, sampling_mode
from collab.training.rollout_journal import RolloutJournal
from collab.training.rollout_trees import RolloutTrees, log_table
from collab.training.step_window import StepGuard, StepWindow
from collab.training.token_policy import TokenPolicy
from collab.training.token_sampling import make_sampler
from collab.training.trl_rows import (
    EpochOrder,
    conversation_reward,
    dataset_of,
    hand_over,
    row_of,
    silence_row_warnings,
    without_rollout_warning,
)
from collab.training.turn_tokens import TurnTokens
from collab.training.weight_sync import WeightSync
from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.template_model import TemplateChatModel
from simulators.chat_models.token_sampler import TokenSampler
from simulators.conversation import Outcome
from simulators.errors import ConfigurationError, TooManyFailures

logger = logging.getLogger(__name__)

Batch = dict[str, Any]
"""What TRL hands from generation to the loss: padded tensors by name, one row per episode."""

_ROW_MEANS = frozenset({"grpo", "sapo", "luspo", "dr_grpo"})
"""TRL's losses that divide by the number of rows, the masked ones included."""


@dataclass(slots=True)
class ConversationSource:
    """What conversations a trainer plays, and how.

    `token_limit` bounds prompt and completion together. `branching` compares replies to one history at every turn (credit
    `mr_branch`), `turn_worths` estimates MR after every turn (credit `mr_difference`). `run_dir` gets the journal and the trees,
    which name the `method`.
    `fingerprint` names everything that decides what is sampled (see the journal).
    """

    environment: Environment
    starts: Sequence[EpisodeStart]
    rollout: RolloutSettings
    run_dir: Path
    fingerprint: str
    token_limit: int
    method: str
    seed: int = 0
    eval_starts: Sequence[EpisodeStart] = ()
    branching: bool = False
    turn_worths: bool = False
    continue_from: str = "best"
    softmax_temperature: float = 0.1


class ConversationTrainer(GRPOTrainer):  # type: ignore[misc]
    """See the module. Everything that TRL's constructor does with rewards and rollouts is set here, not by the caller."""

    def __init__(
        self,
        source: ConversationSource,
        *,
        model: Any,
        args: GRPOConfig,
        tokenizer: Any,
        peft_config: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        self._source = source
        tokens = TurnTokens.of(tokenizer, model)
        model.generation_config.eos_token_id = sorted(tokens.eos_ids)
        if getattr(tokenizer, "response_template", None) is not None:
            tokenizer.response_template = None  # TRL would parse a whole conversation as one reply
        with without_rollout_warning():
            super().__init__(
                model=model,
                reward_funcs=[conversation_reward],
                args=args,
                train_dataset=dataset_of(source.starts),
                eval_dataset=dataset_of(source.eval_starts) if source.eval_starts else None,
                processing_class=tokenizer,
                peft_config=peft_config,
                callbacks=[*callbacks, StepGuard(self)],
                rollout_func=hand_over,
            )
        training_thread = TrainingThread()
        sampler, self._weights = self._make_sampler(tokens, training_thread)
        rollout, rank = source.rollout, self.accelerator.process_index
        sampling = SamplingSettings(rollout.max_tokens, rollout.temperature, rollout.top_p)
        version = lambda: f"step{self.state.global_step}"  # noqa: E731
        player = EpisodePlayer(
            source.environment,
            TokenPolicy(sampler, tokens, sampling, source.token_limit, version, rollout.system_prompt),
            TemplateChatModel(sampler, tokens, "policy", version),
            rollout,
            source.seed,
            source.continue_from,
            source.softmax_temperature,
        )
        journal = RolloutJournal(source.run_dir / "rollouts", rank, source.fingerprint)
        self.rollout = Rollout(player, journal, gather_object, training_thread)
        self.trees = RolloutTrees(source.run_dir, rank, source.method)
        self.last_episodes: list[Episode] = []
        self._pushed_step: int | None = None
        self.handed_over = False
        self._failed_rounds = 0
        self._resume_from: str | None = None
        self._last_logprobs: torch.Tensor | None = None
        self._window = StepWindow()
        silence_row_warnings()

    # ------------------------------------------------------------------------------------------------ conversations to batches

    def _make_sampler(self, tokens: TurnTokens, training_thread: TrainingThread) -> tuple[TokenSampler, WeightSync]:
        return make_sampler(self, self._source.rollout, tokens, training_thread)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        """Play conversations for TRL's rows, have TRL score their tokens, and turn the result into what the loss needs."""
        mode = "train" if self.model.training else "eval"
        started = time.perf_counter()
        episodes = self._play(inputs, mode)
        self.last_episodes = episodes
        played = time.perf_counter()
        self.handed_over = False
        batch = super()._generate_and_score_completions([row_of(episode) for episode in episodes])
        if not self.handed_over or "tool_mask" not in batch:
            raise ConfigurationError(
                "TRL sampled single replies of its own instead of taking the played conversations; this TRL does not fit, "
                "install 'trl>=1.16,<1.17'"
            )
        self._leave_out(batch, [episode.reward is None for episode in episodes])
        batch = self._learn_from(batch, episodes, mode)
        self._record_stats(mode, time.perf_counter() - played)
        if mode == "train":
            self._window.generating_s += time.perf_counter() - started
        return batch

    def _play(self, inputs: list[dict[str, Any]], mode: str) -> list[Episode]:
        """Play this rank's conversations: those of its rows, or branching ones, padded to equal numbers on all ranks."""
        source = self._source
        starts = [(source.starts if mode == "train" else source.eval_starts)[row["start"]] for row in inputs]
        size = self.num_generations if mode == "train" else self.num_generations_eval
        name = f"{mode}{self.state.global_step}"
        if self._pushed_step != self.state.global_step:
            self._weights.push()
            self._pushed_step = self._last_loaded_step = self.state.global_step
        with sampling_mode(self.model):
            if not source.branching:
                first = self.accelerator.process_index * len(inputs)
                places = [(start, (first + index) % size) for index, start in enumerate(starts)]
                return self.rollout.play(places, name, turn_worths=source.turn_worths)
            if len(inputs) % size:
                raise ConfigurationError(
                    f"each rank has {len(inputs)} rows in a rollout, which do not hold whole groups of {size} replies; make "
                    "per_device_batch_size times accumulation steps a multiple of group_size"
                )
            episodes = self.rollout.branch(starts[::size], name, size)
        return self._padded(episodes, self._rows_multiple(size, self.args.steps_per_generation if mode == "train" else 1))

    def _rows_multiple(self, group_size: int, micro_batches: int) -> int:
        """Return what the number of branching rows must be a multiple of, to hold whole groups and split into micro-batches."""
        return math.lcm(group_size, micro_batches)

    def _padded(self, episodes: list[Episode], multiple: int) -> list[Episode]:
        """Add empty rows up to a number that is the same on every rank and splits into groups and micro-batches."""
        most = max(gather_object([len(episodes)]))
        wanted = -(-max(most, 1) // multiple) * multiple
        return episodes + [Episode.padding(index) for index in range(wanted - len(episodes))]

    def _leave_out(self, batch: Batch, left_out: Sequence[bool]) -> None:
        """Mask rows, so that they count neither in the loss, nor in its KL, nor in its normaliser, be it of tokens or of rows."""
        batch["tool_mask"] = batch["tool_mask"] * ~torch.tensor(left_out, device=batch["tool_mask"].device)[:, None]
        tokens = (batch["completion_mask"] * batch["tool_mask"]).sum(1)
        batch["num_items_in_batch"] = self.accelerator.gather(tokens.sum()).sum()
        batch["row_share"] = self.accelerator.gather((tokens > 0).float().mean()).mean()

    def _learn_from(self, batch: Batch, episodes: list[Episode], mode: str) -> Batch:
        """Return the batch with what the method's loss needs."""
        raise NotImplementedError

    def _everyones(self, episodes: Sequence[Episode]) -> tuple[list[TurnValues], slice]:
        """Return the turn values of all ranks' episodes, and which of them are this rank's."""
        mine = [TurnValues((episode.start_id, episode.turn), tuple(episode.worths)) for episode in episodes]
        first = self.accelerator.process_index * len(mine)
        return gather_object(mine), slice(first, first + len(mine))

    def _per_token(self, batch: Batch, episodes: Sequence[Episode], advantages: Advantages) -> torch.Tensor:
        """Spread one number a turn over the tokens of the turn: (B, T), 0 where the policy did not write."""
        result = torch.zeros(batch["completion_ids"].shape, dtype=torch.float32, device=batch["completion_ids"].device)
        for row, (episode, values) in enumerate(zip(episodes, advantages, strict=True)):
            for turn, value in zip(episode.turns, values or (), strict=values is not None):
                result[row, turn.start : turn.end] = value
        return result

    # --------------------------------------------------------------------------------------------------------- loss and steps

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's; keeps the last log-probabilities that a loss was computed from."""
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._last_logprobs = result[0].detach()
        return result

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        inputs = self._rows_of(inputs)
        loss: torch.Tensor = self._loss(model, inputs)
        mask = self._trained_mask(inputs)
        if self.model.training:
            self._window.add_tokens(mask.sum())
        self._record_mismatch(inputs, mask)
        return loss

    def _rows_of(self, inputs: Batch) -> Batch:
        """Return a micro-batch with one row an episode, which is how it comes unless a subclass has packed it otherwise."""
        return inputs

    def _loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        """Return the method's loss of one micro-batch, scaled for accumulation; TRL's own unless a subclass has another.

        It is as if the rows that are left out were not there (TRL's entropy bonus, off by default, is scaled along).
        """
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        return loss / inputs["row_share"].clamp(min=1e-6) if self.loss_type in _ROW_MEANS else loss

    def _trained_mask(self, inputs: Batch) -> torch.Tensor:
        """1 on the tokens that this micro-batch trains."""
        mask: torch.Tensor = inputs["completion_mask"] * inputs["tool_mask"]
        return mask

    def _record_mismatch(self, inputs: Batch, mask: torch.Tensor) -> None:
        """Log how far the sampler's distribution was from the trained policy's at the weights it sampled with.

        KL(sampler || policy) by the k3 estimator (Schulman 2020), the mean ratio policy/sampler, and the largest |log ratio|.
        """
        if "sampling_per_token_logps" not in inputs or self._last_logprobs is None:
            return
        logprobs = inputs.get("old_per_token_logps", self._last_logprobs)
        log_ratio = torch.nan_to_num((logprobs - inputs["sampling_per_token_logps"]) * mask, nan=0.0)
        ratio = log_ratio.exp()
        sums = torch.stack([((ratio - 1 - log_ratio) * mask).sum(), (ratio * mask).sum(), mask.sum().float()])
        divergence, ratios, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        if count:
            self._note("sampler/kl", divergence / count)
            self._note("sampler/ratio", ratios / count)
            self._note("sampler/max_log_ratio", self.accelerator.gather(log_ratio.abs().max()).max().item())

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """TRL's, timed without the rollout that may happen inside."""
        started = time.perf_counter()
        self._window.generating_s = 0.0
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        self._window.updating_s += time.perf_counter() - started - self._window.generating_s
        return loss

    def before_optimizer_step(self) -> None:
        """Keep the optimizer still where there is nothing to learn from, and log the update's throughput.

        Without gradients an optimizer skips a parameter altogether: no momentum, no weight decay. (DeepSpeed steps inside its own
        backward pass and takes a step with zero gradients.)
        """
        window, self._window = self._window, StepWindow()
        tokens = int(self.accelerator.reduce(window.tokens(self.accelerator.device), reduction="sum").item())
        if tokens == 0:
            logger.warning(
                "step %d is skipped: nothing in it can be learned from (every conversation failed, or was masked, or tied)",
                self.state.global_step + 1,
            )
            self._note("rollout/skipped_steps", 1.0)
        if tokens == 0 or self._holds_policy():
            for parameter in self.model.parameters():
                parameter.grad = None
        self._note("time/update_s", window.updating_s)
        self._note("throughput/trained_tokens_per_s", tokens / max(window.updating_s, 1e-9))
        if torch.cuda.is_available():
            self._note("memory/peak_gib", torch.cuda.max_memory_allocated() / 2**30)

    def _holds_policy(self) -> bool:
        """True where this optimizer step is not to move the policy."""
        return False

    # ---------------------------------------------------------------------------------------------------------------- logging

    def _note(self, name: str, value: float) -> None:
        """Add a value to the metrics that TRL averages and logs."""
        self._metrics["train" if self.model.training else "eval"][name].append(value)

    def _record_groups(
        self, values: Sequence[TurnValues], advantages: Advantages, episodes: Sequence[Episode], mode: str
    ) -> None:
        """Log what the groups of all ranks were like, write sample conversations down, and stop a run that only fails."""
        real = [value for value in values if value.group[0]]  # type: ignore[index]
        kept = [value for value in real if value.reward is not None]
        self._note("rollout/episodes", len(real))
        self._note("rollout/dropped", len(real) - len(kept))
        if self.num_generations > 1:
            counts = count_groups(real)
            self._note("rollout/groups", counts.groups)
            self._note("rollout/dead_groups", counts.dead)
            self._note("rollout/failed_groups", counts.failed)
        if kept:
            self._note("rollout/turns", sum(len(value.worths) for value in kept) / len(kept))
        self.trees.write(self.state.global_step, mode, episodes, advantages)
        if "wandb" in (self.args.report_to or []) and self.accelerator.is_main_process:
            log_table(self.state.global_step, mode, episodes, advantages, self._source.rollout.logged_conversations)
        if mode == "train":
            self._failed_rounds = 0 if kept else self._failed_rounds + 1
            if self._failed_rounds >= self._source.rollout.stop_after_failed_rounds:
                errors = sorted({episode.error for episode in episodes if episode.error})
                raise TooManyFailures(
                    f"every conversation of {self._failed_rounds} rollouts in a row failed"
                    f"{f' ({errors[0]})' if errors else ''}; mend that and start the same command again"
                )

    def _record_stats(self, mode: str, scoring_s: float) -> None:
        stats = self.rollout.stats
        self._note("time/rollout_s", stats.seconds)
        self._note("time/sampling_s", stats.sampling_s)
        self._note("time/scoring_s", scoring_s)
        self._note("throughput/sampled_tokens_per_s", stats.sampled_tokens / max(stats.sampling_s, 1e-9))
        self._note("throughput/rollout_tokens_per_s", stats.sampled_tokens / max(stats.seconds, 1e-9))
        self._note("rollout/reused", stats.reused)
        outcomes: Counter[Outcome] = sum(gather_object([stats.outcomes]), Counter())
        for outcome in Outcome:
            self._note(f"outcomes/{outcome.value}", outcomes[outcome] / max(1, outcomes.total()))

    # ----------------------------------------------------------------------------------------------------------------- resume

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """TRL's order of rows, drawn anew for each epoch from the seed: a resumed epoch is ordered as it would have been."""
        return EpochOrder(super()._get_train_sampler(dataset), self.args.seed, lambda: int(self.state.epoch or 0))

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """Train, going on from a checkpoint exactly where one is given."""
        self._resume_from = resume_from_checkpoint
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save our part first: the trainer's state, which is written last, marks a checkpoint as complete."""
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        self._save_own_state(folder)
        super()._save_checkpoint(model, trial)

    def _save_own_state(self, folder: Path) -> None:
        """Save TRL's step counter, and the batch that is still to be used where a rollout feeds several steps."""
        period = self.args.steps_per_generation * self.num_iterations
        waiting = self._buffered_inputs if self._step % period else None
        state = {"step": self._step, "failed_rounds": self._failed_rounds, "waiting": waiting}
        torch.save(state, folder / f"conversations_{self.accelerator.process_index}.pt")

    def load_own_state(self) -> None:
        """Restore what `_save_own_state` saved, once everything else has been restored."""
        if self._resume_from is None:
            return
        path = Path(self._resume_from) / f"conversations_{self.accelerator.process_index}.pt"
        if not path.is_file():
            logger.warning("%s has no state of rank %d; its rollout starts anew", path.parent, self.accelerator.process_index)
            return
        state = torch.load(path, map_location=self.accelerator.device, weights_only=True)
        self._step, self._failed_rounds, self._buffered_inputs = state["step"], state["failed_rounds"], state["waiting"]

    def checkpoint_saved(self) -> None:
        """A complete checkpoint lies on the disk: what was journaled before it will not be asked for again."""
        self.rollout.forget_finished()

    def save_beside(self, output_dir: Path) -> None:
        """Save what belongs to the method and not to the policy, once training is over: nothing here."""

    def close(self) -> None:
        """Release the sampler, its threads, the journal and the file of trees."""
        self.rollout.close()
        self.trees.close()
