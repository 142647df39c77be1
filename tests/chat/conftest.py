"""Chats in terminals that are closed at the end."""

import pytest

from chat.terminal import fake_chat


@pytest.fixture
def chat(tmp_path):
    """Opens chats that are closed at the end, all with one cache folder."""
    opened = []

    def open_chat(*arguments, **options):
        opened.append(fake_chat(*arguments, SPLASHLITE_CACHE=str(tmp_path), **options))
        return opened[-1]

    yield open_chat
    for terminal in opened:
        terminal.close()
