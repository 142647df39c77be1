"""The local API (OpenAI's and Anthropic's shapes) and the chat page, over one engine."""
