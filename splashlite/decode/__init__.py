"""The decode loop and what it needs; it knows no model family."""
