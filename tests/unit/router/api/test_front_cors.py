"""Web pages of other origins: off by default, and told by the headers that browsers look at."""

import pytest

from router.api.settings import ApiSettings
from tandem.process.settings import build_settings
from tests.worlds.front_stage import Stage, chat_body, on_stage

PAGE = "https://chat.example"
CHAT = "/v1/chat/completions"


def test_without_the_setting_nothing_is_said() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.post(CHAT, chat_body(), origin=PAGE)
        assert answer.status == 200
        asked = await stage.client().ask("OPTIONS", CHAT, headers={"origin": PAGE})
        assert asked.status == 405
        assert not [name for each in (answer, asked) for name in each.headers if name.startswith("access-control")]

    on_stage(test)


@pytest.mark.parametrize(("origins", "allowed"), [(f"https://a.example,{PAGE}", PAGE), ("*", "*")])
def test_pages_of_these_origins_may_ask(origins: str, allowed: str) -> None:
    settings = build_settings(ApiSettings, {"cors_origins": origins})

    async def test(stage: Stage) -> None:
        asking = {"origin": PAGE, "access-control-request-method": "POST"}
        asked = await stage.client().ask("OPTIONS", CHAT, headers=asking)
        assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, allowed)
        assert "authorization" in asked.headers["access-control-allow-headers"]
        assert "POST" in asked.headers["access-control-allow-methods"]
        streamed = await stage.post(CHAT, chat_body(stream=True), origin=PAGE)
        whole = await stage.post(CHAT, chat_body(), origin=PAGE)
        refused = await stage.post(CHAT, chat_body(n=0), origin=PAGE)
        for answer, status in ((streamed, 200), (whole, 200), (refused, 400)):
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, allowed)
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-origin" not in (await stage.get("/v1/models")).headers, "no page asks"

    on_stage(test, settings=settings)


def test_pages_of_others_may_not() -> None:
    async def test(stage: Stage) -> None:
        for origin in ("https://chat.example.evil", "http://chat.example", "null"):
            asked = await stage.client().ask("OPTIONS", CHAT, headers={"origin": origin})
            assert asked.status == 405
            assert "access-control-allow-origin" not in (await stage.get("/v1/models", origin=origin)).headers

    on_stage(test, settings=ApiSettings(cors_origins=(PAGE,)))
