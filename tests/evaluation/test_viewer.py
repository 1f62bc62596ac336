"""The viewer in a real browser: what it shows, what it filters, the keyboard alone, dark and light."""

import pytest

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.data.views import kept_nodes
from collab.mr import MultiturnReward
from collab.tasks.task import Task
from simulators.conversation import ConversationTree, Message, Outcome
from simulators.errors import SimulatorError
from simulators.users.protocol import UserTurn
from tests.evaluation.chromium import needs_chromium
from tests.evaluation.synthetic_trees import build_tree, candidates_of, evaluated_tree, linear_tree
from tests.scripted_environment import scripted_environment, scripted_policy

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

SHIFT = 8


async def listed(page):
    return await page.evaluate("SHOWN.map(position => TREES[position].task_id)")


# --- what it shows --------------------------------------------------------------------------------------------------------


async def test_a_run_opens_with_its_list_and_its_first_conversation(opened):
    trees = [build_tree(number) for number in range(40)]
    page = await opened(trees, title="outputs/errands")
    assert await page.evaluate("document.title") == "outputs/errands · conversations"
    failed = sum(node.annotations["mr"]["failed"] for tree in trees for node in candidates_of(tree))
    assert await page.texts("#totals") == [f"40 conversations · 360 candidates · 1,080 futures · {failed} failed"]
    assert await listed(page) == [tree.task_id for tree in trees]
    assert 5 < await page.count(".item") < 40, "only the rows in sight are in the page"
    assert await page.texts(".task h2") == ["errands-00000"]
    assert await page.texts(".brief .text") == [trees[0].metadata["goal"], "Saturday, 7 pm"]


async def test_candidates_stand_side_by_side_with_mr_components_and_marks(opened):
    tree = build_tree(1, turns=2)
    page = await opened([tree])
    cards = await page.evaluate(
        "[...document.querySelectorAll('.turn-candidates:first-of-type .candidate, .turn-candidates .candidate')].map(card => ({"
        " box: card.getBoundingClientRect().toJSON(), mr: card.querySelector('.figure').textContent,"
        " text: card.querySelector('.text').textContent, classes: card.className,"
        " components: [...card.querySelectorAll('.components tr')].map(row => row.textContent) }))"
    )
    candidates = candidates_of(tree)
    assert [card["text"] for card in cards] == [node.message.content for node in candidates]
    assert len({card["box"]["top"] for card in cards[:3]}) == 1 and len({card["box"]["left"] for card in cards[:3]}) == 3
    for card, node in zip(cards, candidates, strict=True):
        estimate, role = node.annotations["mr"], node.annotations["candidate"]["role"]
        assert f"{estimate['mean']:.2f}".replace("-", "−") in card["mr"]
        assert f"± {estimate['std_error']:.2f}" in card["mr"]
        assert (f"{estimate['failed']} of 3 futures failed" in card["mr"]) == (estimate["failed"] > 0)
        assert len(card["components"]) == 3 and card["components"][0].startswith("accuracy")
        assert (role or "other") in card["classes"]
    # the conversation goes on with the chosen reply and the user turn that was kept
    kept = [node.message.content for node in tree.nodes if node.author == "user" and node.annotations.get("kept")]
    assert (await page.texts(".thread .message.user .text"))[1:] == kept


async def test_futures_unfold_below_their_candidate_with_outcome_and_reward(opened):
    tree = build_tree(3, turns=1)
    page = await opened([tree])
    assert await page.count(".future") == 0
    await page.click(".candidate:nth-child(2) .futures-toggle")
    futures = candidates_of(tree)[1].annotations["mr"]["futures"]
    shown = await page.evaluate(
        "[...document.querySelectorAll('.future')].map(card => [card.querySelector('.outcome').textContent,"
        " card.querySelector('.reward').textContent, [...card.querySelectorAll('.message .text')].map(e => e.textContent)])"
    )
    for (outcome, reward, messages), future in zip(shown, futures, strict=True):
        assert outcome == future["outcome"].replace("_", " ")
        assert reward == ("–" if future["reward"] is None else f"{future['reward']:.2f}".replace("-", "−"))
        assert messages == [node.message.content for node in tree.path(future["leaf"])[2:]]
    assert "Futures of candidate B" in (await page.texts(".futures h4"))[0]
    await page.click(".candidate:nth-child(2) .futures-toggle")
    assert await page.count(".future") == 0


async def test_a_failed_future_says_why_and_has_no_reward(opened):
    page = await opened([build_tree(0, turns=1, candidates=2, futures=1, outcome="judge_error")])
    await page.press("F", modifiers=SHIFT)
    assert await page.texts(".future .error") == ["the judge gave no usable answer"] * 2
    assert await page.texts(".future .reward") == ["–"] * 2
    assert (await page.texts(".candidate .figure b"))[0] == "–"


async def test_a_window_of_nothing_is_scored_as_it_stands(opened):
    page = await opened([build_tree(0, turns=1, window=0)])
    await page.press("Enter", "ArrowDown", "f")
    assert (await page.texts(".future .notice"))[0].startswith("Nothing was played")


async def test_trees_without_annotations_show_what_there_is(opened):
    plain = linear_tree("plain", ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"))
    bare = linear_tree("fork", ("user", "Hi"))
    first = bare.add(0, Message("assistant", "one"), "policy").id
    bare.add(0, Message("assistant", "two"), "policy")
    bare.nodes[first].outcome = Outcome.ENDED
    page = await opened([plain, bare, ConversationTree("empty")])
    assert await page.texts(".thread .text") == ["Be brief.", "Hi", "Hello"]
    await page.press("j")
    await page.wait_for("document.querySelector('.task h2').textContent === 'fork'")
    assert await page.texts(".branch") == ["Run 1ended", "Run 2"]
    await page.press("j")
    await page.wait_for("document.querySelector('.task h2').textContent === 'empty'")
    assert await page.texts(".thread .notice") == ["This tree holds no messages."]


async def test_evaluated_runs_are_tabs_with_outcome_and_score(opened):
    tree = evaluated_tree(4, runs=3)
    page = await opened([tree])
    leaves = [node for node in tree.leaves()]
    totals = [f"{leaf.annotations['score']['total']:.2f}" for leaf in leaves]
    assert await page.texts(".branch") == [f"Run {n}ended{total}" for n, total in enumerate(totals, 1)]
    assert await page.texts(".score .figure b") == totals[:1]
    await page.press("]")
    assert await page.texts(".score .figure b") == totals[1:2]
    assert (await page.texts(".thread .text")) == [node.message.content for node in tree.path(leaves[1].id)]


async def test_what_the_builder_writes_is_shown(opened):
    def say(conversation, seed):
        if seed % 5 == 0 and conversation:
            raise SimulatorError("the simulated user sent an empty message")
        return UserTurn(f"user {seed % 1000}", ends=len(conversation) >= 7)

    environment = scripted_environment(say, lambda conversation: float(sum(len(m.content) for m in conversation) % 7))
    policy = scripted_policy(lambda request, rng: f"reply {rng.randrange(1000)}", name="proactive")
    builder = DatasetBuilder(environment, MultiturnReward(environment, policy, 1, 3, 0), [CandidateSource(policy, 3)], 0, 3)
    trees = [await builder.build(Task(f"task-{number}", goal="have it done")) for number in range(6)]
    page = await opened(trees)
    for number, tree in enumerate(trees):
        await page.wait_for(f"document.querySelector('.task h2').textContent === 'task-{number}'")
        kept = [node.message.content for node in kept_nodes(tree)]
        chosen = "document.querySelectorAll('.thread .row .message > .text, .candidate.chosen > .text')"
        assert await page.evaluate(f"[...{chosen}].map(e => e.textContent)") == kept
        assert await page.texts(".candidate.chosen .rank") == ["rank 1"] * (len(kept) // 2)
        assert await page.texts(".candidate.chosen .source") == ["proactive"] * (len(kept) // 2)
        await page.press("F", modifiers=SHIFT)
        stored = [future for node in tree.nodes for future in node.annotations.get("mr", {}).get("futures", [])]
        assert await page.count(".future") == len(stored)
        assert await page.texts(".future .error") == [future["error"] for future in stored if "error" in future]
        await page.press("j")


async def test_a_task_that_was_stopped_says_why(opened):
    page = await opened([linear_tree("t", ("user", "Hi"), stopped="turn 1: no candidate could be scored")])
    assert await page.texts(".thread .error") == ["The conversation stopped: turn 1: no candidate could be scored"]


async def test_assessed_replies_show_their_strategy_and_score(opened):
    tree = linear_tree("t", ("user", "Hi"), ("assistant", "42"), ("assistant", "Which one?"))
    tree.nodes[1].annotations["assessed"] = {"strategy": "answer_attempt", "score": 1.0, "answer": "42"}
    tree.nodes[2].annotations["assessed"] = {"strategy": "clarification", "score": None}
    page = await opened([tree])
    assert await page.texts(".item .value") == ["1.00"], "the best attempt is what the list shows and filters by"
    assert await page.texts(".assessed") == ["answer attempt, score 1.00", "clarification"]
    await page.press("d")
    assert '"answer":"42"' in (await page.texts(".detail"))[1], "an annotation without a place of its own is among the details"


async def test_tokens_masks_and_details_come_on_request(opened):
    tree = build_tree(2, turns=1, candidates=2)
    page = await opened([tree])
    assert await page.count(".token") == 0
    await page.press("t", "d", "m")
    first = candidates_of(tree)[0]
    assert await page.texts(".candidate:first-child .token") == [str(token) for token in first.token_ids]
    assert f"log-probability −{-first.logprobs[0]:.3f}" in await page.evaluate("document.querySelector('.token').title")
    assert str(first.seed) in (await page.texts(".candidate:first-child .detail"))[0], "a seed of 63 bits is not rounded"
    marks = await page.evaluate(
        "[...document.querySelectorAll('.message.user .mask-mark, .candidate .mask-mark')]"
        ".map(mark => (mark.checkVisibility() ? 'shown: ' : 'hidden: ') + mark.textContent)"
    )
    assert marks[0] == "shown: masked"
    assert marks[1] == f"shown: trainable · {len(first.token_ids)} tokens"
    await page.press("t", "d", "m")
    assert await page.count(".token, .detail") == 0


async def test_tokens_are_shown_as_text_where_a_tokenizer_was_given(opened):
    page = await opened([build_tree(2, turns=1)], token_text=lambda token: f"<{token}> ")
    await page.press("t")
    token = candidates_of(build_tree(2, turns=1))[0].token_ids[0]
    assert (await page.texts(".token"))[0] == f"<{token}>·"


# --- filters --------------------------------------------------------------------------------------------------------------


async def test_outcomes_filter_the_list(opened):
    trees = [
        build_tree(n, turns=1, candidates=2, futures=1, outcome=o) for n, o in enumerate(["ended", "truncated", "user_error"])
    ]
    page = await opened(trees)
    assert await page.texts(".chip") == ["ended1", "truncated1", "user error1"]
    await page.click("[data-outcome=truncated]")
    assert await listed(page) == ["errands-00001"]
    await page.click("[data-outcome=user_error]")
    assert await listed(page) == ["errands-00001", "errands-00002"], "any of the outcomes chosen"
    assert await page.texts("#count") == ["2 of 3 shown"]
    await page.click("#clear")
    assert len(await listed(page)) == 3


async def test_metrics_filter_and_order_the_list(opened):
    trees = [build_tree(number, turns=1) for number in range(12)]
    page = await opened(trees)
    values = await page.evaluate("Object.fromEntries(TREES.map(tree => [tree.task_id, tree.metrics.MR]))")
    for tree in trees:
        chosen = [n.annotations["mr"]["mean"] for n in candidates_of(tree) if n.annotations["candidate"]["role"] == "chosen"]
        assert values[tree.task_id] == pytest.approx(chosen[0])
    await page.evaluate("(() => { const low = document.getElementById('low'); low.focus(); })()")
    await page.type("0.4")
    assert set(await listed(page)) == {name for name, value in values.items() if value >= 0.4}
    assert 0 < len(await listed(page)) < 12
    await page.evaluate(
        "(() => { const sort = document.getElementById('sort'); sort.value = 'down'; sort.dispatchEvent(new Event('input')); })()"
    )
    shown = [values[name] for name in await listed(page)]
    assert shown == sorted(shown, reverse=True)


async def test_text_is_found_wherever_it_stands_and_shown_where_it_was_found(opened):
    trees = [build_tree(number, turns=1) for number in range(30)]
    hidden = candidates_of(trees[17])[0].annotations["mr"]["futures"][1]["leaf"]
    trees[17].nodes[hidden].message = Message("assistant", "A Žebra \\ in a “quoted” place")
    page = await opened(trees)
    await page.press("/")
    await page.type("žebra \\ in a “quoted")
    await page.wait_for("SHOWN.length === 1")
    assert await listed(page) == ["errands-00017"]
    await page.press("Enter")
    await page.wait_for("document.querySelector('.task h2').textContent === 'errands-00017'")
    assert "A Žebra \\ in a “quoted” place" in await page.texts(".future .text")
    await page.wait_for("CSS.highlights.get('found')?.size === 1")
    await page.press("c")
    await page.wait_for("SHOWN.length === 30")


async def test_policies_are_a_filter_where_there_are_several(opened):
    page = await opened([evaluated_tree(0, policy=policy) for policy in ("base", "outputs/sft")])
    assert await page.texts("#policy option") == ["every policy", "base", "outputs/sft"]
    await page.evaluate(
        "(() => { const e = document.getElementById('policy'); e.value = 'base'; e.dispatchEvent(new Event('input')); })()"
    )
    assert await page.evaluate("SHOWN.map(position => TREES[position].policy)") == ["base"]


async def test_filters_that_nothing_passes_say_so(opened):
    page = await opened([build_tree(0)])
    await page.press("/")
    await page.type("no such words")
    await page.wait_for("document.querySelector('#rows .notice')?.textContent === 'No conversation passes these filters.'")


# --- keyboard -------------------------------------------------------------------------------------------------------------


async def test_everything_is_done_with_the_keyboard_alone(opened):
    page = await opened([build_tree(number) for number in range(30)])
    focus = "document.activeElement.id || document.activeElement.dataset.stop"
    assert await page.evaluate(focus) == "list"
    await page.press("?")
    assert await page.evaluate("document.getElementById('help').open")
    await page.press("Escape")
    assert not await page.evaluate("document.getElementById('help').open")
    await page.press("ArrowDown", "j", "j", "k")
    await page.wait_for("document.querySelector('.task h2').textContent === 'errands-00002'")
    await page.press("Enter")
    assert await page.evaluate(focus) == "message"
    await page.press("ArrowDown", "ArrowRight")
    assert await page.evaluate("document.activeElement.getAttribute('aria-label')") == (
        await page.evaluate("document.querySelectorAll('.candidate')[1].getAttribute('aria-label')")
    )
    await page.press("Enter")
    assert await page.count(".future") == 3
    await page.press("ArrowDown", "ArrowRight", "ArrowRight")
    assert (await page.evaluate("document.activeElement.getAttribute('aria-label')")).startswith("Future 3")
    await page.press("f")
    assert await page.count(".future") == 0
    assert await page.evaluate(focus) == "candidate", "folding gives the focus back to the candidate"
    await page.press("End")
    assert (
        await page.evaluate("document.activeElement.closest('.turn-candidates').getAttribute('aria-label')")
        == "Candidates of turn 3"
    )
    await page.press("Escape", "End")
    await page.wait_for("document.querySelector('.task h2').textContent === 'errands-00029'")
    selected = await page.evaluate(
        "document.getElementById(document.getElementById('list').getAttribute('aria-activedescendant')).textContent"
    )
    assert selected.startswith("errands-00029"), "the selected row is scrolled into sight"
    await page.press("o", "Space")
    assert await page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


async def test_tab_reaches_every_control(opened):
    page = await opened([build_tree(0, turns=1)])
    await page.press("Enter", "ArrowDown", "f", "Escape")
    reached = set()
    for _ in range(60):
        await page.press("Tab")
        reached.add(
            await page.evaluate("(e => e.id || e.dataset.stop || e.dataset.outcome || e.tagName)(document.activeElement)")
        )
    wanted = {"text", "metric", "low", "high", "sort", "list", "tokens", "mask", "details", "unfold", "keys", "theme", "SUMMARY"}
    assert reached >= wanted | {"message", "candidate", "future", "ended"}


async def test_the_keys_are_documented_in_the_page(opened):
    page = await opened([build_tree(0)])
    documented = set(await page.texts("#help kbd"))
    keys = set(await page.evaluate("[...Object.keys(KEYS), ...Object.keys(THREAD_KEYS)]"))
    names = {"ArrowDown": "↓", "ArrowUp": "↑", "ArrowRight": "→", "ArrowLeft": "←", "Escape": "Esc"}
    assert {names.get(key, key) for key in keys} <= documented


async def test_letters_typed_into_a_field_are_not_commands(opened):
    page = await opened([build_tree(number) for number in range(3)])
    await page.press("/")
    await page.type("jtmdf?")
    assert await page.evaluate("document.getElementById('text').value") == "jtmdf?"
    assert not await page.evaluate("document.getElementById('help').open")
    await page.press("Escape")
    assert await page.evaluate("document.activeElement.id") == "list"


# --- looks ----------------------------------------------------------------------------------------------------------------


async def test_dark_follows_the_system_and_the_button_overrides_it(opened):
    light = await opened([build_tree(0)], scheme="light")
    dark = await opened([build_tree(0)], scheme="dark")
    brightness = (
        "(colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((sum, part) => sum + part) / 3)"
        "(getComputedStyle(document.body).backgroundColor)"
    )
    assert await light.evaluate(brightness) > 200
    assert await dark.evaluate(brightness) < 60
    await dark.press("l")
    assert await dark.evaluate(brightness) > 200
    await dark.evaluate("localStorage.removeItem('collab-theme')")


async def test_a_narrow_window_does_not_scroll_sideways(opened):
    page = await opened([build_tree(0)], width=420, height=800)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 420
    assert await page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")


async def test_the_address_names_the_conversation(opened):
    trees = [linear_tree(name, ("user", f"I am {name}")) for name in ("first", "second/ä #2")]
    page = await opened(trees, address="#second%2F%C3%A4%20%232")
    assert await page.texts(".task h2") == ["second/ä #2"]
    await page.press("k")
    await page.wait_for("location.hash === '#first'")


async def test_a_nameless_conversation_has_an_address_too(opened):
    trees = [linear_tree(name, ("user", f"I am {name}")) for name in ("first", "", "")]
    page = await opened(trees)
    assert await page.evaluate("[SELECTED, ADDRESSES]") == [0, ["first", "/", "//2"]]
    for place, address in enumerate(("#", "#/", "#//2")):
        assert await (await opened(trees, address=address)).evaluate("SELECTED") == place


async def test_the_address_tells_conversations_of_one_task_apart(opened):
    trees = [evaluated_tree(number, policy=policy) for policy in ("base", "errands/sft", "errands/sft") for number in (0, 1)]
    page = await opened(trees)
    addresses = []
    for place in range(len(trees)):
        await page.wait_for(f"SELECTED === {place} && $('conversation').tree?.metadata.policy === TREES[{place}].policy")
        addresses.append(await page.evaluate("location.hash"))
        await page.press("j")
    assert len(set(addresses)) == len(trees) and addresses[3] == "#errands-00001/errands%2Fsft"
    for place, address in enumerate(addresses):
        assert await (await opened(trees, address=address)).evaluate("SELECTED") == place
    for address, first in {"#errands-00001": 1, "#errands-00001/": 0, "#errands-00001/other": 0, "#%": 0}.items():
        assert await (await opened(trees, address=address)).evaluate("SELECTED") == first, address
