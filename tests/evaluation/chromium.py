"""A real browser for tests: headless Chromium, driven over its DevTools protocol with aiohttp.

    async with Chromium() as browser:
        page = await browser.open(path)
        await page.press("j")
        assert await page.evaluate("document.title") == "..."

Every page records what it logs as an error, every exception it throws, every violation of its content policy, and every
request it makes: a test asserts that there were none.
"""

import asyncio
import base64
import itertools
import json
import shutil
import signal
import tempfile
from pathlib import Path

import aiohttp
import pytest

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

needs_chromium = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on this machine; install the package chromium")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)

# What a key is called in the DevTools protocol: (key, code, virtual key code, text).
_KEYS = {
    "Enter": ("Enter", "Enter", 13, "\r"),
    "Escape": ("Escape", "Escape", 27, ""),
    "Tab": ("Tab", "Tab", 9, ""),
    "Space": (" ", "Space", 32, " "),
    "Backspace": ("Backspace", "Backspace", 8, ""),
    "ArrowUp": ("ArrowUp", "ArrowUp", 38, ""),
    "ArrowDown": ("ArrowDown", "ArrowDown", 40, ""),
    "ArrowLeft": ("ArrowLeft", "ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", "ArrowRight", 39, ""),
    "Home": ("Home", "Home", 36, ""),
    "End": ("End", "End", 35, ""),
    "PageDown": ("PageDown", "PageDown", 34, ""),
}


class Page:
    """One tab."""

    def __init__(self, browser, session):
        self._browser = browser
        self._session = session
        self.problems = []
        self.requests = []

    async def call(self, method, **parameters):
        return await self._browser.call(method, parameters, self._session)

    async def evaluate(self, expression):
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}\n{answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def texts(self, selector):
        """Return the texts of the elements that a CSS selector finds."""
        return await self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")

    async def count(self, selector):
        return await self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    async def wait_for(self, expression, timeout_s=20.0):
        """Return the first truthy value of an expression."""
        async with asyncio.timeout(timeout_s):
            while not (value := await self.evaluate(expression)):
                await asyncio.sleep(0.02)
        return value

    async def press(self, *keys, modifiers=0):
        """Press keys one after another, as a person does: named ones (`Enter`), or one character each (`j`, `/`)."""
        for name in keys:
            key, code, number, text = _KEYS.get(name) or (name, "", ord(name.upper()) if name.isalnum() else 0, name)
            event = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
            await self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **event)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def type(self, text):
        await self.press(*text)

    async def click(self, selector):
        """Click in the middle of an element, with the mouse."""
        box = await self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    async def size(self, width, height):
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    async def prefer(self, scheme):
        """Emulate a system that prefers `light` or `dark`."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def before_load(self, script):
        """Run a script in every document before the document's own."""
        await self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    async def go(self, address):
        await self.call("Page.navigate", url=address.as_uri() if isinstance(address, Path) else address)
        await self.wait_for("document.readyState === 'complete'")

    async def screenshot(self, path, *, full=False):
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        Path(path).write_bytes(base64.b64decode(answer["data"]))

    def heard(self, event):
        """Note what went wrong, and what was asked of the network."""
        method, details = event["method"], event["params"]
        if method == "Runtime.exceptionThrown":
            self.problems.append(details["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
            self.problems.append(str([argument.get("value") for argument in details["args"]]))
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(details["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {details['message']}")
        elif method == "Network.requestWillBeSent" and not details["request"]["url"].startswith(("data:", "blob:")):
            self.requests.append(details["request"]["url"])


class Chromium:
    """A browser of its own, with a fresh profile; ends with the `async with`."""

    async def __aenter__(self):
        self._numbers = itertools.count(1)
        self._answers = {}
        self._pages = {}
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._process = await asyncio.create_subprocess_exec(
            EXECUTABLE,
            *FLAGS,
            f"--user-data-dir={self._profile.name}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(60):
                while not (line := await self._process.stderr.readline()).startswith(b"DevTools listening on "):
                    assert line, "Chromium ended before it listened"
            self._drain = asyncio.create_task(self._read_stderr())
            self._client = aiohttp.ClientSession()
            address = line.decode().split()[-1]
            self._socket = await self._client.ws_connect(address, max_msg_size=0)
            self._reader = asyncio.create_task(self._read())
        except BaseException:
            self._process.kill()
            raise
        return self

    async def __aexit__(self, *_):
        self._reader.cancel()
        await self._socket.close()
        await self._client.close()
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._drain.cancel()
        self._profile.cleanup()

    async def open(self, path=None, *, scheme="light", width=1280, height=900, before_load=None):
        """Open a file in a new tab and return its page."""
        target = (await self.call("Target.createTarget", {"url": "about:blank"}))["targetId"]
        session = (await self.call("Target.attachToTarget", {"targetId": target, "flatten": True}))["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.size(width, height)
        await page.prefer(scheme)
        if before_load:
            await page.before_load(before_load)
        if path is not None:
            await page.go(path)
        return page

    async def call(self, method, parameters, session=None):
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(60):
            return await answer

    async def _read(self):
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                answer = self._answers.pop(event["id"])
                if "error" in event:
                    answer.set_exception(AssertionError(str(event["error"])))
                else:
                    answer.set_result(event["result"])
            elif (page := self._pages.get(event.get("sessionId"))) is not None:
                page.heard(event)

    async def _read_stderr(self):
        while await self._process.stderr.readline():
            pass
