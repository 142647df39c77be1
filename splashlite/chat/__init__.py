"""The terminal: one reply as a filter, or a conversation."""
