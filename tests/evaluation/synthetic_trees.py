"""Conversation trees of the shape that the dataset builder and the evaluation write, without any model."""

import random

from simulators.conversation import ConversationTree, Message, Outcome, Usage

WORDS = (
    "date invitation party garden Friday Saturday guests cake sister letter address name menu table evening please thanks "
    "could would which when where how many people should I write formal short warm a the and for with on at of to is it"
).split()
OUTCOMES = ("ended", "ended", "ended", "window_full", "window_full", "truncated", "policy_error", "user_error", "judge_error")
UNSCORED = {"user_error", "judge_error", "infra_error"}


def sentence(rng, low=6, high=24):
    return " ".join(rng.choices(WORDS, k=rng.randint(low, high))).capitalize() + "."


def policy_details(rng, text, tokens):
    details = {
        "model": "embedded-135m",
        "weights_version": "0",
        "finish_reason": "stop",
        "usage": Usage(prompt_tokens=rng.randint(40, 400), completion_tokens=len(text.split())),
        "latency_s": round(rng.uniform(0.05, 0.9), 3),
        "seed": rng.getrandbits(63),
    }
    if tokens:
        details["token_ids"] = [rng.randrange(49_000) for _ in text.split()]
        details["logprobs"] = [-rng.expovariate(2.0) for _ in text.split()]
    return details


def build_tree(number, *, turns=3, candidates=3, futures=3, window=2, seed=0, tokens=True, outcome=None):
    """A tree of the dataset builder: candidates at every turn, each with its futures; the chosen one goes on."""
    rng = random.Random(f"{seed}-{number}")
    tree = ConversationTree(
        f"errands-{number:05d}",
        {
            "task_id": f"errands-{number:05d}",
            "goal": f"Get an invitation for {sentence(rng, 4, 8)}",
            "reference": "Saturday, 7 pm",
            "environment": "errands",
            "policy": "base",
            "task": {"needs_question": bool(number % 3)},
        },
    )
    here = tree.add(None, Message("user", sentence(rng)), "user", seed=rng.getrandbits(63)).id
    for turn in range(turns):
        estimates = [_candidate(tree, rng, here, index, futures, window, tokens, outcome) for index in range(candidates)]
        order = sorted(range(candidates), key=lambda index: _mean(estimates[index]), reverse=True)
        chosen = None
        for index, node in enumerate(estimates):
            role = "chosen" if index == order[0] else "rejected" if index == order[-1] else None
            node.annotations["candidate"] = {
                "index": index,
                "source": ("plain", "proactive", "stem")[index % 3],
                "rank": order.index(index),
                "role": role,
            }
            chosen = node if role == "chosen" else chosen
        chosen.annotations["kept"] = True
        if turn == turns - 1:
            break
        following = tree.children(chosen.id)
        if following:
            following[0].annotations["kept"] = True
            here = following[0].id
        else:
            here = tree.add(chosen.id, Message("user", sentence(rng)), "user", annotations={"kept": True}).id
    return tree


def _mean(node):
    mean = node.annotations["mr"]["mean"]
    return -9.0 if mean is None else mean


def _candidate(tree, rng, parent, index, futures, window, tokens, outcome):
    text = sentence(rng, 8, 40) + (" Which date is it?" if index == 1 else "")
    node = tree.add(parent, Message("assistant", text), "policy", **policy_details(rng, text, tokens))
    worth = rng.gauss(0.3, 0.3)
    records = []
    for future in range(futures):
        ended = outcome or rng.choice(OUTCOMES)
        leaf = node
        for _ in range(window):
            flags = {"flags": ["copied_goal"]} if rng.random() < 0.05 else {}
            leaf = tree.add(leaf.id, Message("user", sentence(rng)), "user", seed=rng.getrandbits(63), annotations=flags)
            reply = sentence(rng)
            leaf = tree.add(leaf.id, Message("assistant", reply), "policy", **policy_details(rng, reply, tokens))
        if leaf is not node:
            leaf.outcome = Outcome(ended)
        failed = ended in UNSCORED
        components = (
            {}
            if failed
            else {"accuracy": float(rng.random() < 0.6), "token_cost": -rng.random() / 5, "interactivity": rng.random()}
        )
        record = {
            "index": future,
            "leaf": leaf.id,
            "outcome": ended,
            "reward": None if failed else worth + rng.gauss(0, 0.2),
            "components": components,
        }
        if failed:
            record["error"] = f"the {ended.removesuffix('_error')} gave no usable answer"
        records.append(record)
    rewards = [record["reward"] for record in records if record["reward"] is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    spread = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1) / len(rewards)) ** 0.5 if len(rewards) > 1 else None
    node.annotations["mr"] = {
        "mean": mean,
        "std_error": spread,
        "used": len(rewards),
        "failed": len(records) - len(rewards),
        "futures": records,
    }
    return node


def candidates_of(tree):
    return [node for node in tree.nodes if "candidate" in node.annotations]


def evaluated_tree(number, *, runs=3, turns=2, policy="base", seed=0):
    """A tree of the evaluation: several whole conversations side by side at the root, each with its score."""
    rng = random.Random(f"evaluated-{seed}-{number}-{policy}")
    tree = ConversationTree(
        f"errands-{number:05d}",
        {"goal": sentence(rng), "reference": "7 pm", "environment": "errands", "policy": policy, "conversations": []},
    )
    for _ in range(runs):
        leaf = None
        for _ in range(turns):
            leaf = tree.add(leaf, Message("user", sentence(rng)), "user").id
            reply = sentence(rng)
            leaf = tree.add(leaf, Message("assistant", reply), "policy", **policy_details(rng, reply, True)).id
        node = tree.nodes[leaf]
        node.outcome = Outcome.ENDED
        score = rng.random()
        node.annotations["score"] = {"total": score, "components": {"accuracy": score, "token_cost": -0.1}, "errors": {}}
    return tree


def linear_tree(task_id, *messages, **metadata):
    """A single conversation of (role, text) pairs, without annotations."""
    tree = ConversationTree(task_id, metadata)
    leaf = None
    for role, text in messages:
        leaf = tree.add(leaf, Message(role, text), {"user": "user", "assistant": "policy", "system": "task"}[role]).id
    return tree
