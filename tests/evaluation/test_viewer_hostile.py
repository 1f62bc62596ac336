"""Hostile texts, damaged files and very large runs in the viewer, in a real browser: nothing happens but that they are shown."""

import time

import pytest

from simulators.conversation import ConversationTree, Message
from tests.evaluation.chromium import needs_chromium
from tests.evaluation.synthetic_trees import build_tree, candidates_of, linear_tree

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

SHIFT = 8


# --- hostile texts ----------------------------------------------------------------------------------------------------------

ATTACKS = [
    "<script>window.hacked = 1; alert('x')</script>",
    "</script><script>window.hacked = 1</script>",
    "<!--<script>",
    "]]></textarea></title></style><img src=x onerror='window.hacked = 1'>",
    '" onfocus="window.hacked=1" autofocus x=\'',
    "<svg onload=window.hacked=1><a href=javascript:window.hacked=1>click</a>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe><meta http-equiv=refresh content=0;url=//example.com>",
    "{{script}} {{title}} <!--data--> ${window.hacked = 1} `\\u003cscript>`",
    "javascript:window.hacked=1//<a href='data:text/html,x'>",
    "مرحبا \u202egnp.exe\u202c שלום " + "x" * 300,
    "nul \x00 bell \x07 escape \x1b[31m delete \x7f",
    "lone surrogate \ud800 and \udfff",
    "emoji 👩‍👩‍👧 combining " + "e\u0301" * 200 + " zalgo " + "a" + "\u0321" * 500,
    "line\u2028separator\u2029paragraph\r\nwindows\rmac",
    "",
]


def hostile_tree():
    """Every field that is shown is an attack; shapes are wrong wherever they can be."""
    attack = ATTACKS[1] + ATTACKS[3]
    tree = ConversationTree(
        attack, {"goal": attack, "reference": attack, "environment": attack, "policy": attack, attack: attack}
    )
    here = None
    for text in ATTACKS:
        here = tree.add(here, Message("user", text), "user", annotations={"flags": [attack, None, 3]}).id
        here = tree.add(here, Message("assistant", text), "policy", model=attack, finish_reason=attack, weights_version=attack).id
    component = {attack: 0.5, "__proto__": 1.0, "constructor": -1.0, "bad": "<b>x</b>", "none": None}
    futures = [
        {"index": 0, "leaf": 10**9, "outcome": attack, "reward": float("nan"), "components": component, "error": attack},
        {"index": attack, "leaf": "0", "outcome": None, "reward": attack, "components": [attack]},
        attack,
        None,
    ]
    for candidate, estimate in [
        ({"index": 0, "source": attack, "rank": attack, "role": attack}, {"mean": attack, "futures": futures}),
        ({"index": 1, "role": "chosen"}, {"mean": 0.5, "std_error": float("inf"), "futures": attack}),
        (attack, attack),
        ({"role": "rejected"}, None),
    ]:
        node = tree.add(here, Message("assistant", attack), "policy", token_ids=[1, 2], logprobs=[float("-inf"), -1.0])
        node.annotations |= {
            "candidate": candidate,
            "mr": estimate,
            "score": {"total": attack, "components": component, "errors": attack},
        }
    return tree


async def test_hostile_texts_are_shown_as_text_and_do_nothing(opened):
    attack = ATTACKS[1] + ATTACKS[3]
    tree = hostile_tree()
    page = await opened(
        [tree, *(linear_tree(text, ("user", text)) for text in ATTACKS)], title=attack, token_text=lambda _: attack
    )
    await page.press("t", "d", "m", "Enter")
    await page.press("F", modifiers=SHIFT)
    shown = await page.evaluate("[...document.querySelectorAll('.thread .message.user .text')].map(e => e.textContent)")
    for text, expected in zip(shown[:10], ATTACKS[:10], strict=True):
        assert text == expected
    assert "nul ␀ bell ␇ escape ␛[31m delete ␡" in shown
    assert "(empty)" in shown
    assert await page.count("#conversation .future") == 4
    for position in range(len(ATTACKS)):
        await page.press("j")
        await page.wait_for(f"SELECTED === {position + 1} && document.querySelectorAll('.thread .message').length === 1")
        if position == 10:
            assert await page.texts(".task h2") == ["nul ␀ bell ␇ escape ␛[31m delete ␡"]
    assert await page.evaluate("typeof window.hacked") == "undefined"
    assert await page.count("img, iframe, a, object, embed, form[action], [onfocus], [onerror], link, base") == 0
    assert await page.count("script:not([type])") == 1
    assert await page.texts("aside h1") == [attack]


async def test_no_string_can_become_markup(opened):
    page = await opened([build_tree(0)])
    refused = await page.evaluate(
        "(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error instanceof TypeError; } })()"
    )
    assert refused, "the content policy requires trusted types, and allows none to be made"
    page.problems.clear()  # the refusal is logged, and here wanted


async def test_a_message_of_a_megabyte_opens_short_and_on_request_whole(opened):
    wide, tall = "word " * 210_000, "x\n" * 500_000
    page = await opened([linear_tree("wide", ("user", wide), ("assistant", "y" * 1_100_000), ("user", tall))])
    assert await page.evaluate("document.querySelector('.thread').textContent.length") < 100_000
    assert await page.texts(".whole") == [f"Show all {size} characters" for size in ("1,050,000", "1,100,000", "1,000,000")]
    await page.press("Enter", "e")
    assert await page.evaluate("document.querySelector('.thread .text').textContent.length") == 1_050_000
    await page.press("e")
    assert await page.evaluate("document.querySelector('.thread .text').textContent.length") <= 20_000


async def test_right_to_left_text_keeps_to_its_own_line(opened):
    page = await opened([linear_tree("rtl", ("user", "مرحبا بالعالم"), ("assistant", "hello \u202e world"))])
    directions = await page.evaluate(
        "[...document.querySelectorAll('.thread .text')].map(e => getComputedStyle(e)).map(s => [s.direction, s.unicodeBidi])"
    )
    assert [direction for direction, _ in directions] == ["rtl", "ltr"]
    assert all(bidi in ("isolate", "plaintext", "isolate-override") for _, bidi in directions)


async def test_a_browser_without_decompression_shows_the_same(opened):
    trees = [build_tree(number) for number in range(20)] + [linear_tree("wide", ("user", "ä€😀" * 50_000))]
    page = await opened(trees, before_load="delete window.DecompressionStream")
    assert await page.evaluate("typeof DecompressionStream") == "undefined"
    assert await page.texts(".candidate:first-child > .text") == [
        node.message.content for node in candidates_of(trees[0]) if node.annotations["candidate"]["index"] == 0
    ]
    whole = await page.evaluate("loadTree(20).then(tree => tree.nodes[0].message.content)")
    assert whole == "ä€😀" * 50_000


async def test_a_block_that_was_damaged_says_so(opened):
    def damage(text):
        start = text.index('id="block-1">') + len('id="block-1">')
        return text[: start + 40] + text[start + 80 :]

    page = await opened([linear_tree("x", ("user", "x" * 400_000)), build_tree(1)], damage=damage)
    await page.press("End")
    assert "cannot be read from this page" in await page.wait_for(
        "document.querySelector('#conversation > .notice')?.textContent"
    )


# --- size -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_five_thousand_conversations_open_in_under_two_seconds(opened, browser):
    base = [build_tree(number) for number in range(250)]

    def trees():
        for number in range(5000):
            tree = base[number % len(base)]
            tree.task_id = f"errands-{number:05d}"
            yield tree

    page = await opened(trees())
    seconds = []
    for _ in range(3):
        again = await browser.open()
        start = time.perf_counter()
        await again.call("Page.navigate", url=page.requests[0])
        await again.wait_for("window.performance?.getEntriesByName('open').length")
        seconds.append(time.perf_counter() - start)
    print(f"5,000 conversations, {sum(map(len, base)) * 20:,} messages: opened in {', '.join(f'{s:.2f}' for s in seconds)} s")
    assert min(seconds) < 2.0
    assert await page.count(".item") < 40
    await page.press("End")
    await page.wait_for("document.querySelector('.task h2').textContent === 'errands-04999'")
    await page.press("/")
    await page.type("no such words anywhere")
    await page.wait_for("FOUND && document.getElementById('searching').hidden", timeout_s=60)
    assert await page.texts("#count") == ["0 of 5,000 shown"]
