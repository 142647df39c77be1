"""docs/api.md says what is there: its endpoints answer, and its fields are taken by the APIs it names."""

import re
from pathlib import Path

import pytest
from scripted import CALLS, Engine, serving
from wire import CHAT, get, post, raw

from splashlite.server import chat, completions, messages, responses

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
REQUESTS = {
    "chat": chat.ChatRequest,
    "completions": completions.CompletionRequest,
    "responses": responses.ResponsesRequest,
    "messages": messages.MessagesRequest,
}


@pytest.fixture(scope="module")
def port():
    with serving(Engine("Fine.", template=CALLS)) as server:
        yield server.port


def test_every_endpoint_that_is_listed_exists_and_no_other(port):
    text = DOCUMENT.read_text()
    listed = {
        path.replace("{id}", "x")
        for row in text.split("\n| Endpoint")[1].split("\n\n")[0].splitlines()
        for path in re.findall(r"(/[\w/{}]+)`", row.split("|")[1] if row.startswith("| `") else "")
    }
    assert len(listed) > 12
    for path in listed:
        found = [get(port, path), post(port, CHAT, path=path)]
        assert any(answer.status != 405 and b"there is nothing at" not in answer.body for answer in found), (
            path
        )


def test_every_field_in_the_table_is_one_of_its_request(port):
    rows = (
        DOCUMENT.read_text()
        .split("| | chat | completions | responses | messages |")[1]
        .split("\n\n")[0]
        .splitlines()[2:]
    )
    checked = 0
    for row in rows:
        first, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        for api, cell in zip(REQUESTS, cells):
            shared = re.findall(r"`([a-z_]+)", first) if cell.startswith("yes") else []
            for name in [*shared, *re.findall(r"`([a-z_]+)", cell)]:
                assert name in REQUESTS[api].model_fields, (api, name)
                checked += 1
    assert checked > 60


def test_the_example_s_reply_carries_what_the_document_says(port):
    reply = post(port, CHAT).json
    rows = DOCUMENT.read_text().split("`splashlite` (in a stream")[1].split("\n\n")[1].splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(reply["splashlite"])
    assert raw(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 200
