"""Adapters on a server that keeps the book a vLLM server keeps: names it has loaded, and requests by name."""

import asyncio
from pathlib import Path

import pytest

from simulators.chat_models.lora_adapters import adapter_version
from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.server import ChatServer, ServerOptions
from simulators.conversation import Message
from simulators.errors import ConfigurationError
from simulators.journal import call_key
from tests.simulators.fault_server import Body, FaultServer

HELLO = ChatRequest((Message("user", "hello"),))
OPTIONS = ServerOptions(extensions=True, first_backoff_s=0.01, deadline_s=2)


class Lora:
    """What a server has loaded; replies name the adapter that wrote them."""

    def __init__(self, server: FaultServer) -> None:
        self.loaded: set[str] = set()
        server.admin = self.admin
        server.plan = lambda number, body: None if body["model"] in self.loaded | {"m"} else "404 no such model"
        server.reply = lambda body: f"by {body['model']}"

    def admin(self, path: str, body: Body) -> tuple[int, Body]:
        match path:
            case "/v1/load_lora_adapter" if body["lora_name"] in self.loaded:
                return 400, {"error": {"message": f"The lora adapter '{body['lora_name']}' has already been loaded."}}
            case "/v1/load_lora_adapter":
                self.loaded.add(body["lora_name"])
            case "/v1/unload_lora_adapter":
                self.loaded.discard(body["lora_name"])
            case "/reset_prefix_cache":
                return 200, {}
        return 200, {}


def adapter(folder: Path, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text("{}")
    return folder


async def test_after_an_update_the_next_sample_comes_from_the_new_weights(fault_server: FaultServer, tmp_path: Path) -> None:
    lora = Lora(fault_server)
    model = ChatServer(fault_server.url, "m", OPTIONS)
    assert (await model.complete(HELLO))[0].text == "by m"
    keys = {call_key(model, HELLO)}
    names = []
    for step in range(3):  # the same folder every time, as trainers write it
        names.append(await model.load_adapter("policy", adapter(tmp_path / "policy", b"weights %d" % step)))
        (completion,) = await model.complete(HELLO)
        assert completion.text == f"by {names[-1]}"
        assert completion.weights_version == model.weights_version == names[-1]
        keys.add(call_key(model, HELLO))
    assert len(set(names)) == 3
    assert len(keys) == 4  # no reply of old weights is read back from the journal
    assert lora.loaded == {names[-1]}
    assert [path for path, _ in fault_server.other].count("/reset_prefix_cache") == 3
    await model.aclose()


async def test_equal_weights_keep_their_name_so_that_a_resumed_run_finds_its_journal(
    fault_server: FaultServer, tmp_path: Path
) -> None:
    lora = Lora(fault_server)
    first = ChatServer(fault_server.url, "m", OPTIONS)
    name = await first.load_adapter("policy", adapter(tmp_path / "a", b"w"))
    second = ChatServer(fault_server.url, "m", OPTIONS)
    assert await second.load_adapter("policy", adapter(tmp_path / "b", b"w")) == name  # the server has it already
    assert await second.load_adapter("policy", adapter(tmp_path / "b", b"w")) == name
    assert lora.loaded == {name}
    await first.aclose()
    await second.aclose()


async def test_calls_under_way_finish_with_the_adapter_they_began_with(fault_server: FaultServer, tmp_path: Path) -> None:
    lora = Lora(fault_server)
    model = ChatServer(fault_server.url, "m", OPTIONS)
    old = await model.load_adapter("policy", adapter(tmp_path / "p", b"1"))
    fault_server.latency_s = 0.05
    call = asyncio.create_task(model.complete(HELLO))
    await asyncio.sleep(0.02)
    new = await model.load_adapter("policy", adapter(tmp_path / "p", b"2"))
    assert lora.loaded == {old, new}
    (completion,) = await call
    assert completion.weights_version == old
    assert completion.text == f"by {old}"
    await model.aclose()  # unloading has come to its end
    assert lora.loaded == {new}


async def test_a_restarted_server_gets_the_adapter_again(fault_server: FaultServer, tmp_path: Path) -> None:
    lora = Lora(fault_server)
    model = ChatServer(fault_server.url, "m", OPTIONS)
    name = await model.load_adapter("policy", adapter(tmp_path / "p", b"1"))
    lora.loaded.clear()
    assert (await model.complete(HELLO))[0].text == f"by {name}"
    await model.aclose()


async def test_a_server_that_loses_the_adapter_again_and_again_stops_the_run(fault_server: FaultServer, tmp_path: Path) -> None:
    model = ChatServer(fault_server.url, "m", OPTIONS)
    await model.load_adapter("policy", adapter(tmp_path / "p", b"1"))
    fault_server.plan = lambda number, body: "404 no such model"
    async with asyncio.timeout(2):
        with pytest.raises(ConfigurationError, match="404"):
            await model.complete(HELLO)
    assert len(fault_server.requests) == 2
    await model.aclose()


async def test_every_server_gets_the_adapter_and_one_that_is_away_gets_it_later(
    fault_server: FaultServer, tmp_path: Path
) -> None:
    other = FaultServer()
    await other.start()
    loras = [Lora(fault_server), Lora(other)]
    model = ChatServer([fault_server.url, other.url], "m", OPTIONS)
    first = await model.load_adapter("policy", adapter(tmp_path / "p", b"1"))
    assert all(lora.loaded == {first} for lora in loras)
    await other.stop()
    second = await model.load_adapter("policy", adapter(tmp_path / "p", b"2"))
    await other.start()
    requests = [ChatRequest((Message("user", f"task {task}"),)) for task in range(30)]
    replies = await asyncio.gather(*(model.complete(request) for request in requests))
    assert {completion.text for (completion,) in replies} == {f"by {second}"}
    await other.stop()
    await model.aclose()


async def test_a_refused_adapter_stops_the_run_and_the_old_one_stays(fault_server: FaultServer, tmp_path: Path) -> None:
    model = ChatServer(fault_server.url, "m", OPTIONS)
    fault_server.admin = lambda path, body: (404, {})
    with pytest.raises(ConfigurationError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        await model.load_adapter("policy", adapter(tmp_path / "p", b"1"))
    assert model.weights_version == "0"
    await fault_server.stop()
    with pytest.raises(ConfigurationError, match="could not be loaded anywhere"):
        await model.load_adapter("policy", tmp_path / "p")
    with pytest.raises(ConfigurationError, match="vLLM"):
        await ChatServer(fault_server.url, "m").load_adapter("policy", tmp_path / "p")
    await model.aclose()


async def test_an_adapter_that_was_loaded_by_others_is_used_by_name_and_not_unloaded(
    fault_server: FaultServer, tmp_path: Path
) -> None:
    lora = Lora(fault_server)
    lora.loaded.add("theirs")
    model = ChatServer(fault_server.url, "m", OPTIONS, adapter="theirs")
    assert (model.name, model.weights_version) == ("m", "theirs")
    assert (await model.complete(HELLO))[0].text == "by theirs"
    await model.load_adapter("policy", adapter(tmp_path / "p", b"1"))
    assert "theirs" in lora.loaded
    await model.aclose()


def test_a_folder_that_cannot_be_read_here_never_has_the_same_version_twice(tmp_path: Path) -> None:
    assert adapter_version(tmp_path / "elsewhere") != adapter_version(tmp_path / "elsewhere")
    assert adapter_version(adapter(tmp_path / "a", b"1")) != adapter_version(adapter(tmp_path / "b", b"2"))
