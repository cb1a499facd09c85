"""Summaries of what left a session: what the small model is asked, what is kept, put in front and billed."""

import asyncio
from pathlib import Path

from aiohttp import web

from gateway.inference.session.summaries import INSTRUCTION
from protocol.usage import UsageEvent
from tests.support.gateways import DEADLINE_S, durable_events, eventually
from tests.support.scripted_members import Json, Turn
from tests.support.session_scenes import SessionScene, session_scene, system
from tests.support.valkey import ValkeyProcess

LONG = "u" * 2000


def is_summary(body: Json) -> bool:
    return str(body["messages"][0]["content"]) == INSTRUCTION


def script(body: Json) -> Turn:
    if is_summary(body):
        number = body["messages"][1]["content"].count("Summary so far")
        return Turn(texts=(f"They met {number}.",), prompt_tokens=300, completion_tokens=9)
    return Turn(texts=("ok",))


async def fill(scene: SessionScene, first: int = 0, num_turns: int = 8) -> None:
    """Turns of about 700 of a window of 4096 tokens, of which 3/4 are for the prompt."""
    for number in range(first, first + num_turns):
        reply = await scene.ask(*([system("Be kind.")] if number == 0 else []), f"fact {number} {LONG}")
        assert reply.status_code == 200, reply.text


async def until_summary(scene: SessionScene, summary: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await scene.read())["summary"] != summary:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_leaves_is_summed_up_put_in_front_and_billed_as_such(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, script, engine="tiergate") as scene:
        await scene.choose(overflow="summary")
        await fill(scene, num_turns=5)
        await until_summary(scene, "They met 0.")
        [asked] = [body for body in scene.member.bodies if is_summary(body)]
        # In idle time, and of what left alone.
        assert (asked["priority"], asked["max_tokens"], asked["temperature"]) == (3, 256, 0)
        kept = await scene.read()
        num_left = kept["num_left"] // 2
        text = asked["messages"][1]["content"]
        assert text == "\n".join(f"user: fact {number} {LONG}\nassistant: ok" for number in range(num_left))
        assert [message["content"][:6] for message in kept["messages"][1::2]] == [
            f"fact {number}" for number in range(num_left, 5)
        ]
        await scene.ask("what now?")
        shown = scene.member.bodies[-1]["messages"]
        assert shown[0] == {
            "role": "system",
            "content": "Be kind.\n\nSummary of the conversation before the messages that follow:\nThey met 0.",
        }
        # Kept apart from the system prompt, which a later summary does not pile up on.
        assert (await scene.read())["messages"][0]["content"] == "Be kind."

        def events() -> list[UsageEvent]:
            return [event for event in durable_events(scene.gateway) if event.endpoint == "/v1/sessions"]

        await eventually(events)
        [event] = events()
        assert (event.session_id, event.tenant_id, event.pool) == ("s", scene.tenant_id, "small")
        assert (event.prompt_tokens, event.completion_tokens) == (300, 9)
        # One of the prompt's tokens was cached, and no price says that these are cheaper.
        assert event.cost_nanousd == 300 * 100 + 9 * 400
        causes = {event.request_id for event in durable_events(scene.gateway) if event.endpoint != "/v1/sessions"}
        assert event.client_request_id in causes

        await fill(scene, first=5)
        await until_summary(scene, "They met 1.")
        later = [body["messages"][1]["content"] for body in scene.member.bodies if is_summary(body)]
        assert later[1].startswith("Summary so far: They met 0.\nuser: fact")


async def test_without_a_summary_the_conversation_goes_on_and_the_next_turn_asks_again(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    num_refused = 0

    async with session_scene(tmp_path, valkey, script) as scene:

        async def refuse_summaries(_request: web.Request) -> web.Response | None:
            nonlocal num_refused
            if not is_summary(scene.member.bodies[-1]):
                return None
            num_refused += 1
            error = {"message": "no", "type": "invalid_request_error"}
            return web.json_response({"error": error}, status=400)

        scene.member.interrupt = refuse_summaries
        await scene.choose(overflow="summary")
        await fill(scene, num_turns=5)
        await eventually(lambda: num_refused > 0)
        assert (await scene.read())["summary"] is None
        scene.member.interrupt = None
        assert (await scene.ask("go on")).status_code == 200
        await until_summary(scene, "They met 0.")
        [asked] = [body for body in scene.member.bodies if is_summary(body)][num_refused:]
        assert asked["messages"][1]["content"].startswith("user: fact 0")


async def test_a_tenant_that_did_not_choose_summaries_pays_for_none(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with session_scene(tmp_path, valkey, script) as scene:
        await fill(scene)
        assert (await scene.read())["num_left"] > 0
        assert not any(map(is_summary, scene.member.bodies))
        assert scene.gateway.services.summaries.num_waiting == 0


async def test_a_summary_too_long_for_the_window_is_of_the_end(tmp_path: Path, valkey: ValkeyProcess) -> None:
    """Whole turns may together be more than the small pool's window holds beside a summary."""
    async with session_scene(tmp_path, valkey, script) as scene:
        await scene.choose(overflow="summary")
        await fill(scene, num_turns=4)
        reply = await scene.ask("last " + "u" * 9000)
        assert reply.status_code == 200, reply.text
        await until_summary(scene, "They met 0.")
